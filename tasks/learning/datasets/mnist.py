"""MNIST (LeCun, Cortes, Burges): 60,000 training and 10,000 test digits."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks.learning.datasets import DataSet, SourceFile, Split

CLASSES = tuple("0123456789")


def read_idx(folder: Path) -> Iterator[Split]:
    """Both splits from the four IDX files in `folder`, unpacked there, with torchvision's own readers.

    Raises `ValueError` when images and labels do not match in number.
    """
    from torchvision.datasets.mnist import read_image_file, read_label_file
    from torchvision.datasets.utils import extract_archive

    for name, prefix in (("train", "train"), ("test", "t10k")):
        paths = [folder / f"{prefix}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
        for path in paths:
            extract_archive(f"{path}.gz", str(folder))
        images = read_image_file(str(paths[0])).numpy()[..., np.newaxis]
        labels = read_label_file(str(paths[1])).numpy()
        if len(images) != len(labels):
            raise ValueError(f"{paths[0].name} has {len(images)} images but {paths[1].name} {len(labels)} labels")
        yield Split(name=name, images=images, labels=labels)


# The MD5 sums and mirrors are those of torchvision.datasets.MNIST; the SHA-256 sums are of the same files.
DATA_SET = DataSet(
    name="mnist",
    files=(
        SourceFile(
            name="train-images-idx3-ubyte.gz",
            md5="f68b3c2dcbeaaa9fbdd348bbdeb94873",
            sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        SourceFile(
            name="train-labels-idx1-ubyte.gz",
            md5="d53e105ee54ea40749a09fcbcd1e9432",
            sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        SourceFile(
            name="t10k-images-idx3-ubyte.gz",
            md5="9fb629c4189551a2d022fa330f9573f3",
            sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        SourceFile(
            name="t10k-labels-idx1-ubyte.gz",
            md5="ec29112dd5afa0611ce80d1b7f02629c",
            sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    classes=CLASSES,
    image_shape=(28, 28, 1),
    read=read_idx,
)
