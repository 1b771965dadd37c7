"""Rows of a batch are spread over all batches of the next epoch, almost as a shuffle of all rows would spread them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from storage import commits, manifest, tables
from storage.uri import DatasetURI
from tasks.jobs.train.make_loader import make_loader
from tasks.learning import images
from tests.jobs import raw
from tests.jobs.raw import reader

_BATCH = 64
_ROWS = {28: 40_000, 96: 8_000}
"""Rows by side in pixels: several windows of the streaming loader each."""


def _write(folder: Path, side: int) -> DatasetURI:
    """Write black images whose labels are their numbers, in as many parts as `preprocess` writes."""
    uri, shape, rows = DatasetURI(str(folder / "datasets/prepared/rows-0123456789ab")), (side, side, 3), _ROWS[side]
    listed = []
    for index, (start, stop) in enumerate(images.part_bounds(rows, images.num_parts(rows, shape))):
        ids, pixels = np.arange(start, stop), np.zeros((stop - start, *shape), np.uint8)
        table = images.to_table(ids, pixels, ids, classes=("a", "b"))
        listed.append(tables.write_part(uri, table, split="train", index=index))
    listed.append(tables.write_part(uri, table.slice(0, 1), split="validation", index=0))
    columns = tables.describe(images.schema(shape, ("a", "b")))
    commits.commit(uri, kind="prepared", parents={}, parameters={}, listed=listed, schema=columns)
    return uri


def _overlap(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest share of a batch that meets again in one batch of the next epoch, the mean over batches."""
    batch_of = torch.empty(int(max(first.max(), second.max())) + 1, dtype=torch.int64).fill_(-1)
    batch_of[second] = torch.arange(len(second)) // _BATCH
    together = [batch_of[rows][batch_of[rows] >= 0].bincount().max().item() for rows in torch.split(first, _BATCH)]
    return sum(together) / len(together) / _BATCH


# `ray-data` gives the batches of `streaming` (test_on_ray.py); the others permute all rows, of whatever size.
@pytest.mark.parametrize("side", _ROWS)
def test_batches_of_two_epochs_share_few_rows(tmp_path: Path, side: int) -> None:
    uri, rows = _write(tmp_path, side), _ROWS[side]
    recipe = raw.recipe(batch_size=_BATCH)
    loader = make_loader(recipe, uri, manifest.load(uri), reader("streaming"))
    epochs = [
        torch.cat([labels for _, labels in loader.train_batches(epoch=epoch, batch_size=_BATCH)]) for epoch in (1, 2)
    ]
    full = [torch.randperm(rows, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    assert _overlap(*epochs) < 2 * _overlap(*full)
