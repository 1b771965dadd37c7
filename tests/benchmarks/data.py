"""Images for all arms: MNIST or its sample, or the requested number of rows of either."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from storage import commits, tables
from storage.uri import DatasetURI, Root
from tasks.jobs.ingest import downloads
from tasks.learning import images, sources
from tasks.learning.downloading import mirror_address
from tasks.learning.sources import Source, Split
from tasks.learning.sources.mnist_sample import FOLDER
from tests.mirrors import fetch

SAMPLE = "sample"
"""The source that is the sample which comes with the project."""


def load(source: str) -> dict[str, Split]:
    """Train and test split from `source`: `sample`, or where MNIST's files are."""
    found = of(source)
    with tempfile.TemporaryDirectory() as folder:
        fetch(found, Path(folder), address(source))
        return {split.name: split for split in found.read(Path(folder))}


def of(source: str) -> Source:
    """The data set that lies at `source`."""
    return sources.load("mnist-sample" if source == SAMPLE else "mnist")


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
    published = of(source)
    listed = [part for split in splits.values() for part in downloads.write_split(published, uri, split)]
    schema = tables.describe(images.schema(published.image_shape, published.classes))
    about: dict[str, Any] = {"sources": [], "notice": published.notice, "seconds": 0.0}
    parameters = {"data": published.name}
    commits.commit(uri, kind="raw", parents={}, parameters=parameters, listed=listed, schema=schema, statistics=about)
    return uri
