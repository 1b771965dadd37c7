"""CIFAR-10 (Krizhevsky): 50,000 training and 10,000 test pictures of ten kinds of things, 32 x 32, in colour.

It is read from the binary archive: the archive for Python contains pickles, and downloads are never unpickled.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.learning.datasets import DataSet, SourceFile, Split
from tasks.learning.sources import unpack

_SHAPE = (32, 32, 3)
_FOLDER = "cifar-10-batches-bin"
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = ("test_batch.bin",)


def read_binary(folder: Path, *, file: SourceFile) -> Iterator[Split]:
    """Unpack the archive `file` in `folder` and read both splits; images are memory-mapped."""
    unpack(file, folder)
    for name, parts in (("train", _TRAIN), ("test", _TEST)):
        records = [_records(folder / _FOLDER / part) for part in parts]
        labels = np.concatenate([some[:, 0] for some in records])
        yield Split(name=name, images=Pixels(records), labels=labels.astype(np.int64))


class Pixels:
    """Images of several memory-mapped record files in sequence; a slice is loaded into memory as HWC."""

    dtype = np.dtype(np.uint8)

    def __init__(self, records: Sequence[np.ndarray]) -> None:
        self._records = records
        self.shape = (sum(len(some) for some in records), *_SHAPE)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> np.ndarray:
        start, stop, step = rows.indices(len(self))
        assert step == 1, step
        found, before = [], 0
        for some in self._records:
            found.append(some[max(start - before, 0) : max(stop - before, 0), 1:])
            before += len(some)
        height, width, channels = _SHAPE
        planes = np.concatenate(found).reshape(-1, channels, height, width)
        return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))

    def __array__(self, dtype: Any = None, /, *, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype)


def _records(path: Path) -> np.ndarray:
    """Memory-map one row per image: the label, then the red, green and blue planes, each row by row."""
    size = 1 + math.prod(_SHAPE)
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise ValueError(f"{path.name} is not in the archive") from None
    if found % size:
        raise ValueError(f"{path.name} is truncated: {found} bytes is not a multiple of the image size, {size} bytes")
    if not found:  # an empty file cannot be mapped
        return np.empty((0, size), np.uint8)
    return np.memmap(path, np.uint8, "r", shape=(found // size, size))


# MD5 sum and mirror are from the data set's own page; the SHA-256 sum is of the same file.
_FILE = SourceFile(
    name="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)

DATA_SET = DataSet(
    name="cifar10",
    files=(_FILE,),
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    image_shape=_SHAPE,
    read=functools.partial(read_binary, file=_FILE),
)
