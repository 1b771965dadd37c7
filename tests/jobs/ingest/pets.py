"""A data set in three shards, as a person would bring it: each shard is a file of training and one of test rows."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks.learning.recipes import Data, PixelAugment, Recipe, Training, own
from tasks.learning.sources import Source, SourceFile, Split

SHAPE = (2, 2, 1)
ROWS = {"north": (50, 9), "south": (30, 20), "west": (7, 12)}
"""Training and test rows of each shard."""
READERS = "PETS_READERS"
"""Environment variable: a folder in which each call of `read` leaves a file that says who read what."""


def rows(split: str, shard: str) -> np.ndarray:
    """A label and four pixels each; every tenth label is of no class."""
    count = ROWS[shard][split == "test"]
    found = np.random.default_rng(len(shard) + count).integers(0, 256, (count, 5), dtype=np.uint8)
    found[:, 0] = np.where(np.arange(count) % 10 == 9, 200, np.arange(count) % 2)
    return found


def read(folder: Path) -> Iterator[Split]:
    names = sorted(path.name for path in folder.iterdir())
    if READERS in os.environ:
        Path(os.environ[READERS], f"{_task()} {' '.join(names)}").touch()
    for split in ("train", "test"):
        found = [np.fromfile(folder / name, np.uint8).reshape(-1, 5) for name in names if name.startswith(split)]
        records = np.concatenate(found)
        yield Split(name=split, images=records[:, 1:].reshape(-1, *SHAPE), labels=records[:, 0].astype(np.int64))


def _task() -> str:
    import ray

    return str(ray.get_runtime_context().get_task_id()) if ray.is_initialized() else "none"


def write_files(folder: Path) -> None:
    """The files as a mirror has them."""
    for split in ("train", "test"):
        for shard in ROWS:
            (folder / f"{split} {shard}.bin").write_bytes(rows(split, shard).tobytes())


def _file(split: str, shard: str) -> SourceFile:
    content = rows(split, shard).tobytes()
    sums = {name: hashlib.new(name, content).hexdigest() for name in ("md5", "sha256")}
    return SourceFile(name=f"{split} {shard}.bin", **sums, shard=shard)


SOURCE = Source(
    name="pets",
    files=tuple(_file(split, shard) for shard in ROWS for split in ("train", "test")),
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
