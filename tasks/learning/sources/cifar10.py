"""CIFAR-10 (Krizhevsky): 50,000 training and 10,000 test pictures of ten kinds of things, 32 x 32, in colour.

It is read from the binary archive: the archive for Python contains pickles, and downloads are never unpickled.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tasks.learning.downloading import unpack
from tasks.learning.sources import Source, SourceFile, Split

_SHAPE = (32, 32, 3)
_ARCHIVE = "cifar-10-binary.tar.gz"
_FOLDER = "cifar-10-batches-bin"
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = ("test_batch.bin",)


def read_binary(folder: Path) -> Iterator[Split]:
    """Unpack the archive in `folder` and read both splits, one at a time."""
    unpack(folder / _ARCHIVE)
    height, width, channels = _SHAPE
    for name, parts in (("train", _TRAIN), ("test", _TEST)):
        records = _records([folder / _FOLDER / part for part in parts])
        planes = records[:, 1:].reshape(-1, channels, height, width)
        yield Split(name=name, images=planes.transpose(0, 2, 3, 1), labels=records[:, 0].astype(np.int64))


def _records(parts: Sequence[Path]) -> np.ndarray:
    """Read one row per image: the label, then the red, green and blue planes, row by row."""
    size, contents = 1 + math.prod(_SHAPE), []
    for path in parts:
        if not path.exists():
            raise ValueError(f"{path.name} is not in the archive")
        contents.append(np.fromfile(path, np.uint8))
        if (num_bytes := len(contents[-1])) % size:
            raise ValueError(
                f"{path.name} is truncated: {num_bytes} bytes is not a multiple of the image size, {size} bytes"
            )
    return np.concatenate(contents).reshape(-1, size)


# MD5 sum and mirror are from the data set's own page; the SHA-256 sum is of the same file.
SOURCE = Source(
    name="cifar10",
    files=(
        SourceFile(
            name=_ARCHIVE,
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    image_shape=_SHAPE,
    read=read_binary,
)
