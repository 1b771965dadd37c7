"""MNIST (LeCun, Cortes, Burges): 60,000 training and 10,000 test digits."""

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks.learning.sources import Source, SourceFile, Split

CLASSES = tuple("0123456789")
_NAMES = tuple(
    f"{part}-ubyte.gz" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)


def files_of(*sums: tuple[str, str]) -> tuple[SourceFile, ...]:
    """Return the files of a source in MNIST's format; `sums` are the MD5 and SHA-256 of each, in order."""
    return tuple(SourceFile(name=name, md5=md5, sha256=sha) for name, (md5, sha) in zip(_NAMES, sums, strict=True))


def read_idx(folder: Path) -> Iterator[Split]:
    """Read both splits from the four files in `folder`, one at a time."""
    for name, (images, labels) in (("train", _NAMES[:2]), ("test", _NAMES[2:])):
        pixels = _content(folder / images, dimensions=3)[..., np.newaxis]
        yield Split(name=name, images=pixels, labels=_content(folder / labels, dimensions=1).astype(np.int64))


def _content(path: Path, *, dimensions: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes: four bytes, the size of each dimension (big-endian), then the content."""
    content = gzip.decompress(path.read_bytes())
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


# The MD5 sums and mirrors are those of torchvision.datasets.MNIST; the SHA-256 sums are of the same files.
SOURCE = Source(
    name="mnist",
    files=files_of(
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("d53e105ee54ea40749a09fcbcd1e9432", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("9fb629c4189551a2d022fa330f9573f3", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("ec29112dd5afa0611ce80d1b7f02629c", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    classes=CLASSES,
    image_shape=(28, 28, 1),
    read=read_idx,
)
