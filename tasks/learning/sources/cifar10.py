"""CIFAR-10 (Krizhevsky): 50,000 training and 10,000 test pictures of ten kinds of things, 32 x 32, in colour.

It is read from the binary archive: the archive for Python contains pickles, and downloads are never unpickled.
"""

import math
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks.learning.sources import Source, SourceFile, Split

_SHAPE = (32, 32, 3)
_ARCHIVE = "cifar-10-binary.tar.gz"
_FOLDER = "cifar-10-batches-bin"
_FILES = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}


def read_binary(folder: Path) -> Iterator[Split]:
    """Read both splits from the archive in `folder`, one at a time.

    A row has the label, then the red, green and blue planes.
    """
    height, width, channels = _SHAPE
    with tarfile.open(folder / _ARCHIVE) as archive:
        for name, parts in _FILES.items():
            files = [archive.extractfile(f"{_FOLDER}/{part}") for part in parts]
            content = b"".join(file.read() for file in files if file)
            rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + math.prod(_SHAPE))
            planes = rows[:, 1:].reshape(-1, channels, height, width)
            yield Split(name=name, images=planes.transpose(0, 2, 3, 1), labels=rows[:, 0].astype(np.int64))


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
