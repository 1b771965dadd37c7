"""Ray Data gives a training the batches that a worker would read itself, byte for byte, on any node."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.exceptions import RayTaskError

from storage import commits, files, manifest, tables
from storage.uri import DatasetURI, Root
from tasks.jobs import errors
from tasks.jobs.train import make_loader
from tasks.jobs.train.ray_loader import RayDataRows
from tasks.learning import images
from tasks.learning.loop import Loader
from tasks.learning.recipes import Data, Recipe, Training
from tests.jobs.feeds import reader
from tests.rays import token_of_its_own
from tests.s3 import Server

_SHAPE = (2, 2, 3)
_RECIPE = Recipe(name="small", data=Data(source="mnist"), model="small-cnn", training=Training(epochs=2, seed=5))
_PARTS = {"train": (31, 1, 40, 29), "validation": (7, 16)}
"""Rows of each part: 101 and 23, primes, so that nothing comes out even."""
_BATCH = 8


@pytest.fixture(scope="module")
def local_ray(s3: Server) -> Iterator[None]:
    """A Ray of the tests' own, whose tasks reach the S3 server."""
    with token_of_its_own():
        options = {"include_dashboard": False, "logging_level": "WARNING", "object_store_memory": 10**8}
        ray.init(address="local", num_cpus=2, **options)
        yield
        ray.shutdown()


@pytest.fixture
def prepared(root: Root, local_ray: None, monkeypatch: pytest.MonkeyPatch) -> DatasetURI:
    """124 rows, each an image and a label of its own, in windows of at most 33 rows."""
    monkeypatch.setattr(make_loader, "WINDOW_ROWS", 33)
    monkeypatch.setattr(make_loader, "WINDOW_BATCHES", 1)
    uri, listed = DatasetURI(root.child("datasets/prepared/small-0123456789ab")), []
    for split, sizes in _PARTS.items():
        for index, (first, rows) in enumerate(zip(np.cumsum((0, *sizes)), sizes, strict=False)):
            ids = np.arange(first, first + rows)
            pixels = np.random.default_rng(ids).integers(0, 256, (rows, *_SHAPE), dtype=np.uint8)
            table = images.to_table(ids, pixels, ids, classes=("one", "two"))
            listed.append(tables.write_part(uri, table, split=split, index=index))
    columns = tables.describe(images.schema(_SHAPE, ("one", "two")))
    commits.commit(uri, kind="prepared", parents={}, parameters={}, listed=listed, schema=columns)
    return uri


def loader(uri: DatasetURI, kind: str, *, rank: int, world_size: int, prefetch_batches: int = 1) -> Loader:
    """The loader of one rank, as a training worker makes it."""
    rows = partial(RayDataRows, prefetch_batches=prefetch_batches, world_size=world_size)
    here = reader(kind, rank=rank, world_size=world_size, rows=rows if kind == "ray-data" else None)
    return make_loader.make_loader(_RECIPE, uri, manifest.load(uri), here)


def epoch(feed: Loader, number: int) -> list[tuple[list[Any], list[Any]]]:
    """Every batch of training and validation rows."""
    batches = [*feed.train_batches(epoch=number, batch_size=_BATCH), *feed.validation_batches(batch_size=_BATCH)]
    assert all(pixels.dtype == torch.uint8 and labels.dtype == torch.int64 for pixels, labels in batches)
    return [(pixels.tolist(), labels.tolist()) for pixels, labels in batches]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_rank_gets_the_batches_that_it_would_read_itself(prepared: DatasetURI, world_size: int) -> None:
    seen: dict[str, list[int]] = {split: [] for split in _PARTS}
    for rank in range(world_size):
        ours, alone = (loader(prepared, kind, rank=rank, world_size=world_size) for kind in ("ray-data", "streaming"))
        assert ours.num_train_rows() == alone.num_train_rows()
        first, again, second = epoch(ours, 1), epoch(ours, 1), epoch(ours, 2)
        assert first == again == epoch(alone, 1)
        assert second == epoch(alone, 2) != first
        seen["train"] += [row for _, labels in ours.train_batches(epoch=1, batch_size=1) for row in labels.tolist()]
        seen["validation"] += [row for _, labels in ours.validation_batches(batch_size=5) for row in labels.tolist()]
    assert {split: sorted(rows) for split, rows in seen.items()} == {
        split: list(range(sum(sizes))) for split, sizes in _PARTS.items()
    }


@pytest.mark.parametrize("prefetch_batches", [0, 3])
def test_how_far_it_reads_ahead_changes_no_batch(prepared: DatasetURI, prefetch_batches: int) -> None:
    ours = loader(prepared, "ray-data", rank=0, world_size=1, prefetch_batches=prefetch_batches)
    assert epoch(ours, 1) == epoch(loader(prepared, "streaming", rank=0, world_size=1), 1)


def test_a_part_with_other_bytes_than_were_committed_is_not_fed(local_ray: None, tmp_path: Path) -> None:
    uri = DatasetURI(str(tmp_path / "datasets/prepared/small-0123456789ab"))
    pixels, labels = np.zeros((9, *_SHAPE), np.uint8), np.arange(9)
    listed = [
        tables.write_part(uri, images.to_table(labels, pixels, labels, classes=("a", "b")), split=split, index=0)
        for split in _PARTS
    ]
    columns = tables.describe(images.schema(_SHAPE, ("a", "b")))
    commits.commit(uri, kind="prepared", parents={}, parameters={}, listed=listed, schema=columns)
    damaged = uri.child(listed[0].path)
    content = bytearray(files.read(damaged))
    content[len(content) // 2] ^= 1
    files.put(damaged, bytes(content))
    with pytest.raises(RayTaskError) as caught:
        epoch(loader(uri, "ray-data", rank=0, world_size=1), 1)
    assert "is damaged: its content is not what was committed" in str(errors.root_cause(caught.value))
