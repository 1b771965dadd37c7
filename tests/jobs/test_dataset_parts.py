"""Shards: every row of every file belongs to exactly one rank, and ranks differ by at most one row."""

import pytest

from storage.manifest import File
from tasks.jobs.dataset_parts import Slice, shard, whole_files
from tasks.learning.epoch_metrics import local_batch_size

SIZES = [[5, 0, 7, 1, 30], [1], [3, 3, 3], [0, 2], [1000, 1]]


def listed(sizes: list[int]) -> list[File]:
    """A file for each number of rows."""
    return [File(path=f"train/part-{index}", size=1, rows=rows, sha256="") for index, rows in enumerate(sizes)]


def rows(slices: list[Slice]) -> list[tuple[str, int]]:
    """File and number of every row, in order."""
    return [(part.file.path, row) for part in slices for row in range(part.start, part.stop)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("batch_size", [None, 100, 128])
def test_ranks_together_have_every_row_once_and_in_order_and_rows_for_all_whole_batches(
    sizes: list[int], world_size: int, batch_size: int | None
) -> None:
    files, ranks = listed(sizes), range(world_size)
    shards = [shard(files, rank=rank, world_size=world_size, batch_size=batch_size) for rank in ranks]
    assert [row for slices in shards for row in rows(slices)] == rows(whole_files(files))
    assert all(part.start < part.stop for slices in shards for part in slices), "a file is read for nothing"
    counts = [len(rows(slices)) for slices in shards]
    if batch_size is None:
        assert max(counts) - min(counts) <= 1
    else:
        shares = [local_batch_size(batch_size, rank=rank, world_size=world_size) for rank in ranks]
        assert sum(shares) == batch_size and max(shares) - min(shares) <= 1
        assert all(count >= sum(sizes) // batch_size * share for count, share in zip(counts, shares, strict=True))
