"""CIFAR-10's archive: a small one of the same shape goes through the same code."""

import dataclasses
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np

from tasks.learning.sources import Source, SourceFile, cifar10
from tests.mirrors import fetch

ROWS = 7
"""In each of the six files."""


def pixels(batch: int, *, rows: int = ROWS) -> np.ndarray:
    """The images of one file, NHWC."""
    return np.random.default_rng(batch).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)


def labels(batch: int, *, rows: int = ROWS) -> np.ndarray:
    return np.arange(batch, batch + rows) % 10


def write_archive(folder: Path, *, rows: int = ROWS, plain: bool = False) -> Source:
    """A source whose archive lies in `folder`; with `plain`, each class has a brightness, which can be learned."""
    path = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
        for batch, name in enumerate(names):
            planes = pixels(batch, rows=rows).transpose(0, 3, 1, 2).reshape(rows, -1)
            if plain:
                planes = (planes // 10 + 23 * labels(batch, rows=rows)[:, None]).astype(np.uint8)
            content = np.column_stack([labels(batch, rows=rows).astype(np.uint8), planes]).tobytes()
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    sums = {name: hashlib.new(name, path.read_bytes()).hexdigest() for name in ("md5", "sha256")}
    return dataclasses.replace(cifar10.SOURCE, files=(SourceFile(name=path.name, **sums),))


def test_every_image_comes_out_in_its_place_with_its_label(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    source = write_archive(tmp_path / "mirror")
    fetch(source, tmp_path, f"{(tmp_path / 'mirror').as_uri()}/")
    train, test = source.read(tmp_path)
    assert np.array_equal(train.images[:], np.concatenate([pixels(batch) for batch in range(5)]))
    assert np.array_equal(train.labels, np.concatenate([labels(batch) for batch in range(5)]))
    assert np.array_equal(test.images[:], pixels(5)) and np.array_equal(test.labels, labels(5))
    assert train.labels.dtype == np.int64
