"""CIFAR-10 (Krizhevsky): 50,000 training and 10,000 test pictures of ten kinds of things, 32 x 32, in colour.

Taken from the binary archive: the one for Python holds pickles, and nothing that was downloaded is unpickled.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks.learning.datasets import DataSet, SourceFile, Split
from tasks.learning.sources import unpack

_SHAPE = (32, 32, 3)
_FOLDER = "cifar-10-batches-bin"
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = ("test_batch.bin",)


def read_binary(folder: Path, *, file: SourceFile) -> Iterator[Split]:
    """Both splits from the archive `file` in `folder`, unpacked there.

    Raises `ValueError` naming the file that is missing or cut off.
    """
    unpack(file, folder)
    for name, parts in (("train", _TRAIN), ("test", _TEST)):
        records = np.concatenate([_records(folder / _FOLDER / part) for part in parts])
        height, width, channels = _SHAPE
        pixels = records[:, 1:].reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
        yield Split(name=name, images=np.ascontiguousarray(pixels), labels=records[:, 0].astype(np.int64))


def _records(path: Path) -> np.ndarray:
    """One row for each image: the label, then red, green and blue, each row by row."""
    size = 1 + int(np.prod(_SHAPE))
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except FileNotFoundError:
        raise ValueError(f"{path.name} is not in the archive") from None
    if len(content) % size:
        raise ValueError(f"{path.name} is cut off: {len(content)} bytes are no whole number of images of {size} bytes")
    return content.reshape(-1, size)


# Sums and mirror are those that the data set's own page gives; the SHA-256 sum is of the same file.
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
