"""Images for all arms: MNIST or its sample, or the requested number of rows of either."""

import tempfile
from pathlib import Path

import numpy as np

from tasks.learning import sources
from tasks.learning.downloading import mirror_address
from tasks.learning.sources import Source, Split
from tasks.learning.sources.mnist_sample import FOLDER
from tests.mirrors import fetch

SAMPLE = "sample"
"""The source that is the sample which comes with the project."""


def load(source: str) -> dict[str, Split]:
    """Train and test split from `source`: `sample`, or where MNIST's files are."""
    published = of(source)
    with tempfile.TemporaryDirectory() as folder:
        fetch(published, Path(folder), address(source))
        return {split.name: split for split in published.read(Path(folder))}


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
