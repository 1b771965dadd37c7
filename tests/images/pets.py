"""A data set as a person would bring it: a file of training and one of test rows."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks.learning.recipes import Data, PixelAugment, Recipe, Training, own
from tasks.learning.sources import Source, SourceFile, Split

SHAPE = (2, 2, 1)
ROWS = {"train": 87, "test": 41}


def rows(split: str) -> np.ndarray:
    """A label and four pixels each; every tenth label is of no class."""
    count = ROWS[split]
    records = np.random.default_rng(count).integers(0, 256, (count, 5), dtype=np.uint8)
    records[:, 0] = np.where(np.arange(count) % 10 == 9, 200, np.arange(count) % 2)
    return records


def read(folder: Path) -> Iterator[Split]:
    for split in ROWS:
        records = np.fromfile(folder / f"{split} rows.bin", np.uint8).reshape(-1, 5)
        yield Split(name=split, images=records[:, 1:].reshape(-1, *SHAPE), labels=records[:, 0].astype(np.int64))


def write_files(folder: Path) -> None:
    """The files as a mirror has them."""
    for split in ROWS:
        (folder / f"{split} rows.bin").write_bytes(rows(split).tobytes())


def _file(split: str) -> SourceFile:
    content = rows(split).tobytes()
    sums = {name: hashlib.new(name, content).hexdigest() for name in ("md5", "sha256")}
    return SourceFile(name=f"{split} rows.bin", **sums)


SOURCE = Source(
    name="pets",
    files=tuple(map(_file, ROWS)),
    mirrors=(),
    classes=("cat", "dog"),
    image_shape=SHAPE,
    read=read,
)


def recipe() -> Recipe:
    return Recipe(
        name="pets",
        data=Data(source=own(SOURCE)),
        model="resnet18",
        training=Training(epochs=1, augment=PixelAugment(max_shift=0)),
    )
