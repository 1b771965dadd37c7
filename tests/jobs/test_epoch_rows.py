"""Rows of an epoch: all but those that fill no global batch, none always left out, and shuffled over all batches."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage import failpoints, manifest
from storage.kinds import DatasetURI
from tasks.jobs import dataset_parts
from tasks.jobs.train import make_loader
from tasks.learning import images
from tasks.learning.epoch_metrics import local_batch_size
from tasks.learning.loop import Loader
from tests.jobs import raw
from tests.jobs.raw import reader
from tests.runs import await_that

_ROWS = {"train": 1009, "validation": 23}
_WINDOW = 60
"""Rows that the streaming loader holds at a time, at most."""
_EPOCHS = 30


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> DatasetURI:
    """Rows whose labels are their numbers, and pixels the numbers modulo 251, in parts of several sizes."""

    def parts(rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for ids in np.split(np.arange(rows), [rows // 3, rows // 2]):
            yield ids, (ids % 251).astype(np.uint8).reshape(-1, 1, 1, 1)

    folder = tmp_path_factory.mktemp("rows")
    return raw.write_prepared(folder, (1, 1, 1), {split: parts(rows) for split, rows in _ROWS.items()})


def every_rank(uri: DatasetURI, kind: str, *, world_size: int, batch_size: int) -> list[Loader]:
    """The loader of each rank, as its worker makes it."""
    recipe = raw.recipe(batch_size=batch_size)
    contents, ranks = manifest.load(uri), [reader(kind, rank=rank, world_size=world_size) for rank in range(world_size)]
    return [make_loader.make_loader(recipe, uri, contents, here) for here in ranks]


def trained(feeds: list[Loader], *, batch_size: int, epoch: int) -> list[int]:
    """The rows that all ranks together train in one epoch, which has as many steps as the rank with the fewest."""
    shares = [local_batch_size(batch_size, rank=rank, world_size=len(feeds)) for rank in range(len(feeds))]
    steps = min(feed.num_train_rows() // share for feed, share in zip(feeds, shares, strict=True))
    rows = []
    for feed, share in zip(feeds, shares, strict=True):
        batches = list(feed.train_batches(epoch=epoch, batch_size=share, steps=steps))
        assert [len(labels) for _, labels in batches] == [share] * steps
        assert all(torch.equal(pixels.flatten(), labels % 251) for pixels, labels in batches)
        rows += torch.cat([labels for _, labels in batches]).tolist()
    return rows


@pytest.mark.parametrize(
    ("kind", "world_size", "batch_size"),
    [
        *(("resident", 1, 16), ("resident", 3, 100), ("streaming", 1, 16), ("streaming", 2, 9), ("streaming", 7, 16)),
        ("dataloader", 2, 16),
    ],
)
def test_an_epoch_leaves_out_less_than_a_batch_of_rows_and_in_each_epoch_others(
    prepared: DatasetURI, monkeypatch: pytest.MonkeyPatch, kind: str, world_size: int, batch_size: int
) -> None:
    monkeypatch.setattr(make_loader, "WINDOW_ROWS", _WINDOW)
    monkeypatch.setattr(make_loader, "WINDOW_BATCHES", 1)
    feeds = every_rank(prepared, kind, world_size=world_size, batch_size=batch_size)
    times: Counter[int] = Counter(range(_ROWS["train"]))
    left_out = _ROWS["train"] % batch_size
    for epoch in range(1, _EPOCHS + 1):
        rows = trained(feeds, batch_size=batch_size, epoch=epoch)
        assert len(rows) == len(set(rows)) == _ROWS["train"] - left_out, "no row comes twice"
        times.update(rows)
    checked = [labels for feed in feeds for _, labels in feed.validation_batches(batch_size=batch_size)]
    assert sorted(torch.cat(checked).tolist()) == list(range(_ROWS["validation"])), "every row once"
    expected = _EPOCHS * (1 - left_out / _ROWS["train"])
    assert min(times.values()) - 1 > 0.7 * expected, "a row is left out again and again"


@pytest.mark.parametrize("world_size", [1, 3])
def test_what_fits_into_a_window_is_fed_as_the_resident_loader_does(prepared: DatasetURI, world_size: int) -> None:
    """The batches of ordinary runs, which have one window, are those of every version before."""
    pairs = zip(
        *(every_rank(prepared, kind, world_size=world_size, batch_size=16) for kind in ("resident", "streaming")),
        strict=True,
    )
    for rank, (resident, streaming) in enumerate(pairs):
        share = local_batch_size(16, rank=rank, world_size=world_size)
        for epoch in (1, 2):
            first, others = (
                [labels.tolist() for _, labels in feed.train_batches(epoch=epoch, batch_size=share)]
                for feed in (resident, streaming)
            )
            assert first == others


def test_the_next_window_is_prepared_while_one_is_in_use_and_both_keep_their_rows(
    prepared: DatasetURI, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()
    monkeypatch.setattr(failpoints, "handler", lambda point, at: read.append(at))
    slices = [
        dataclasses.replace(part, start=start, stop=start + 20)
        for part in dataset_parts.whole_files(manifest.load(prepared).split("train"))
        for start in range(0, 160, 20)
    ]
    about: dict[str, Any] = {"size": 40, "shape": (1, 1, 1), "device": torch.device("cpu"), "uri": prepared}
    windows = make_loader.read_windows("train", slices, transform=None, threads=1, **about)
    kept = [next(windows)]
    await_that(lambda: len(read) == 6, limit_s=30)  # four for this window and ahead of it, and two more
    kept += windows
    assert torch.cat([labels for _, labels in kept]).tolist() == [
        part.first + row for part in slices for row in range(part.start, part.stop)
    ]
    assert all(torch.equal(pixels.flatten(), labels % 251) for pixels, labels in kept)


def overlap(first: torch.Tensor, second: torch.Tensor) -> float:
    """The largest share of a batch that meets again in one batch of the next epoch, the mean over batches."""
    batch_of = torch.empty(int(max(first.max(), second.max())) + 1, dtype=torch.int64).fill_(-1)
    batch_of[second] = torch.arange(len(second)) // 64
    together = [batch_of[rows][batch_of[rows] >= 0].bincount().max().item() for rows in torch.split(first, 64)]
    return sum(together) / len(together) / 64


@pytest.mark.parametrize(("side", "rows"), [(28, 40_000), (96, 8_000), (224, 3_000)])
def test_batches_of_two_epochs_share_few_rows_though_they_are_streamed_in_windows(
    tmp_path: Path, side: int, rows: int
) -> None:
    shape = (side, side, 3)
    numbers = [np.arange(*bounds) for bounds in images.part_bounds(rows, images.num_parts(rows, shape))]
    parts = ((ids, np.zeros((len(ids), *shape), np.uint8)) for ids in numbers)
    uri = raw.write_prepared(tmp_path, shape, {"train": parts, "validation": []})
    (loader,) = every_rank(uri, "streaming", world_size=1, batch_size=64)
    epochs = [torch.cat([labels for _, labels in loader.train_batches(epoch=n, batch_size=64)]) for n in (1, 2)]
    full = [torch.randperm(rows, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    assert overlap(*epochs) < 2 * overlap(*full)
