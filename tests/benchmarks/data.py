"""The images that all arms work on: MNIST, or the sample of it, and as much of either as is asked for."""

import tempfile
from pathlib import Path

import numpy as np

from storage import manifest, tables
from storage.uri import DatasetURI, Root
from tasks.download import write_split
from tasks.learning import datasets, images
from tasks.learning.datasets import DataSet, Split
from tasks.learning.datasets.mnist_sample import FOLDER
from tasks.learning.sources import fetch, mirror_address

DATA_SET = datasets.load("mnist")
"""What all datasets of the benchmark are said to be of."""
SAMPLE = "sample"


def load(source: str) -> dict[str, Split]:
    """Train and test split from `source`: `sample`, or where MNIST's files are."""
    found = of(source)
    with tempfile.TemporaryDirectory() as folder:
        fetch(found, Path(folder), mirrors=[address(source)], log=lambda *_: None)
        return {split.name: split for split in found.read(Path(folder))}


def of(source: str) -> DataSet:
    """The data set that lies at `source`."""
    return datasets.load("mnist-sample") if source == SAMPLE else DATA_SET


def address(source: str) -> str:
    """Of its files."""
    return FOLDER.as_uri() + "/" if source == SAMPLE else mirror_address(source)


def tiled(split: Split, times: int) -> Split:
    """`times` the rows: each repetition moved sideways by another number of pixels, so that none compress away."""
    moved = [np.roll(split.images, time, axis=2) for time in range(times)]
    return Split(name=split.name, images=np.concatenate(moved), labels=np.tile(split.labels, times))


def write_raw(root: Root, splits: dict[str, Split], *, name: str) -> DatasetURI:
    """A committed raw dataset of these splits; `name` ends in a fingerprint."""
    uri = DatasetURI(root.child(f"datasets/raw/{name}"))
    listed = [file for split in splits.values() for file in write_split(DATA_SET, uri, split)]
    counts = {split.name: np.bincount(split.labels, minlength=10).tolist() for split in splits.values()}
    manifest.commit(
        uri,
        kind="raw",
        parents={},
        parameters={"data": DATA_SET.name},
        listed=listed,
        schema=tables.describe(images.schema(DATA_SET.image_shape, DATA_SET.classes)),
        statistics={
            "class_counts": {split: dict(zip(DATA_SET.classes, n, strict=True)) for split, n in counts.items()}
        },
    )
    return uri
