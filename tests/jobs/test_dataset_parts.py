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
class TestShard:
    def test_ranks_together_have_every_row_once_and_in_order(self, sizes: list[int], world_size: int) -> None:
        files = listed(sizes)
        shards = [shard(files, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert [row for one in shards for row in rows(one)] == rows(whole_files(files))
        assert len(rows(whole_files(files))) == sum(sizes)

    def test_ranks_have_as_many_rows_give_or_take_one(self, sizes: list[int], world_size: int) -> None:
        files = listed(sizes)
        counts = [len(rows(shard(files, rank=rank, world_size=world_size))) for rank in range(world_size)]
        assert max(counts) - min(counts) <= 1

    def test_no_file_is_read_for_nothing(self, sizes: list[int], world_size: int) -> None:
        files = listed(sizes)
        slices = [part for rank in range(world_size) for part in shard(files, rank=rank, world_size=world_size)]
        assert all(part.start < part.stop for part in slices)

    def test_ranks_that_share_batches_have_rows_for_all_of_them(self, sizes: list[int], world_size: int) -> None:
        files, total = listed(sizes), sum(sizes)
        for batch_size in (world_size, 2 * world_size, 100, 128):
            shards = [
                shard(files, rank=rank, world_size=world_size, batch_size=batch_size) for rank in range(world_size)
            ]
            assert [row for one in shards for row in rows(one)] == rows(whole_files(files))
            shares = [local_batch_size(batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
            for one, share in zip(shards, shares, strict=True):
                assert len(rows(one)) >= total // batch_size * share
            if batch_size % world_size == 0:
                assert shards == [shard(files, rank=rank, world_size=world_size) for rank in range(world_size)]
