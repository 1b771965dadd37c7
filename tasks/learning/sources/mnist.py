"""MNIST (LeCun, Cortes, Burges): 60,000 training and 10,000 test digits."""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks.learning.downloading import unpack
from tasks.learning.sources import Source, SourceFile, Split

CLASSES = tuple("0123456789")
_NAMES = tuple(
    f"{part}-ubyte.gz" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)
_UNSIGNED_BYTES = 0x0800  # magic number of an IDX file of unsigned bytes, before the number of dimensions is added


def files_of(*sums: tuple[str, str]) -> tuple[SourceFile, ...]:
    """Return the files of a source in MNIST's format; `sums` are the MD5 and SHA-256 of each, in order."""
    return tuple(SourceFile(name=name, md5=md5, sha256=sha) for name, (md5, sha) in zip(_NAMES, sums, strict=True))


def read_idx(folder: Path) -> Iterator[Split]:
    """Unpack the four IDX files in `folder` and read both splits, one at a time.

    Raises `ValueError` naming the file that is truncated, or both files if the numbers of images and labels differ.
    """
    for name, archives in (("train", _NAMES[:2]), ("test", _NAMES[2:])):
        paths = [unpack(folder / archive) for archive in archives]
        images = _content(paths[0], dimensions=3)[..., np.newaxis]
        labels = _content(paths[1], dimensions=1).astype(np.int64)
        if len(images) != len(labels):
            raise ValueError(f"{paths[0].name} has {len(images)} images but {paths[1].name} {len(labels)} labels")
        yield Split(name=name, images=images, labels=labels)


def _content(path: Path, *, dimensions: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes: a header of big-endian numbers, then exactly the bytes."""
    content, start, wrong = path.read_bytes(), 4 + 4 * dimensions, f"{path.name} is not a complete IDX file"
    if len(content) < start:
        raise ValueError(f"{wrong}: its header is truncated")
    kind, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
    if kind != _UNSIGNED_BYTES + dimensions:
        raise ValueError(f"{wrong}: it must begin with {_UNSIGNED_BYTES + dimensions:#06x}, got {kind:#06x}")
    if len(content) != (size := start + math.prod(shape)):
        raise ValueError(f"{wrong}: the shape {shape} in its header requires {size} bytes, got {len(content)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


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
