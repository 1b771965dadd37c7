"""Images for all arms: MNIST or its sample, or the requested number of rows of either."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from storage import commits, tables
from storage.uri import DatasetURI, Root
from tasks.jobs.ingest import data_sets
from tasks.learning import datasets, images
from tasks.learning.datasets import DataSet, Split
from tasks.learning.datasets.mnist_sample import FOLDER
from tasks.learning.sources import mirror_address
from tests.mirrors import fetch

SAMPLE = "sample"
"""The source that is the sample which comes with the project."""


def load(source: str) -> dict[str, Split]:
    """Train and test split from `source`: `sample`, or where MNIST's files are."""
    found = of(source)
    with tempfile.TemporaryDirectory() as folder:
        fetch(found, Path(folder), address(source))
        return {split.name: split for split in found.read(Path(folder))}


def of(source: str) -> DataSet:
    """The data set that lies at `source`."""
    return datasets.load("mnist-sample" if source == SAMPLE else "mnist")


def address(source: str) -> str:
    """Of its files."""
    return FOLDER.as_uri() + "/" if source == SAMPLE else mirror_address(source)


def tiled(split: Split, times: int) -> Split:
    """`times` the rows: each repetition moved sideways by another number of pixels, so that none compress away."""
    moved = [np.roll(split.images[:], time, axis=2) for time in range(times)]
    return Split(name=split.name, images=np.concatenate(moved), labels=np.tile(split.labels, times))


def write_raw(root: Root, splits: dict[str, Split], *, source: str, name: str) -> DatasetURI:
    """A committed raw dataset of `splits`, said to be of the data set at `source`; `name` ends in a fingerprint."""
    uri = DatasetURI(root.child(f"datasets/raw/{name}"))
    data_set = of(source)
    listed = [part for split in splits.values() for part in data_sets.write_split(data_set, uri, split)]
    schema = tables.describe(images.schema(data_set.image_shape, data_set.classes))
    about: dict[str, Any] = {"sources": [], "notice": data_set.notice, "seconds": 0.0}
    parameters = {"data": data_set.name}
    commits.commit(uri, kind="raw", parents={}, parameters=parameters, listed=listed, schema=schema, statistics=about)
    return uri
