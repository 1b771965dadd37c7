"""Rows of a batch are spread over all batches of the next epoch, almost as a shuffle of all rows would spread them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from storage import manifest
from storage.uri import DatasetURI
from tasks.jobs.train.make_loader import make_loader
from tasks.learning import images
from tests.jobs import raw
from tests.jobs.raw import reader

_BATCH = 64
_ROWS = {28: 40_000, 96: 8_000, 224: 3_000}
"""Rows by side in pixels: several windows of the streaming loader each."""


def _write(folder: Path, side: int) -> DatasetURI:
    """Write black images whose labels are their numbers, in as many parts as `preprocess` writes."""
    shape, rows = (side, side, 3), _ROWS[side]
    numbers = [np.arange(*bounds) for bounds in images.part_bounds(rows, images.num_parts(rows, shape))]
    parts = ((ids, np.zeros((len(ids), *shape), np.uint8)) for ids in numbers)
    one = (np.arange(1), np.zeros((1, *shape), np.uint8))
    return raw.write_prepared(folder, shape, {"train": parts, "validation": [one]})


def _overlap(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest share of a batch that meets again in one batch of the next epoch, the mean over batches."""
    batch_of = torch.empty(int(max(first.max(), second.max())) + 1, dtype=torch.int64).fill_(-1)
    batch_of[second] = torch.arange(len(second)) // _BATCH
    together = [batch_of[rows][batch_of[rows] >= 0].bincount().max().item() for rows in torch.split(first, _BATCH)]
    return sum(together) / len(together) / _BATCH


@pytest.mark.parametrize(
    ("kind", "side"),
    # `ray-data` gives the batches of `streaming` (test_on_ray.py); the others permute all rows, of whatever size.
    [("resident", 28), ("dataloader", 28), ("streaming", 28), ("streaming", 96), ("streaming", 224)],
)
def test_batches_of_two_epochs_share_few_rows(tmp_path: Path, kind: str, side: int) -> None:
    uri = _write(tmp_path, side)
    loader = make_loader(raw.recipe(batch_size=_BATCH), uri, manifest.load(uri), reader(kind))
    epochs = [
        torch.cat([labels for _, labels in loader.train_batches(epoch=epoch, batch_size=_BATCH)]) for epoch in (1, 2)
    ]
    full = [torch.randperm(_ROWS[side], generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    assert _overlap(*epochs) < 2 * _overlap(*full)
