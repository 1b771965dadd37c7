"""Ray Data source for committed parts: the manifest lists files and rows, so Ray need not look at the files first."""

from collections.abc import Sequence

import pyarrow as pa
import ray.data
from ray.data import DataContext, Dataset
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from storage.manifest import File
from storage.uri import DatasetURI
from tasks.jobs.dataset_parts import Slice, read_slice, starts, whole_files

SLICES, EPOCH = "slices", "epoch"
"""Keys of a dataset's `DataContext`: what the next execution reads instead of all rows, and the value of `epoch`."""


def dataset(uri: DatasetURI, listed: Sequence[File], *, numbered: bool = False) -> Dataset:
    """Return a dataset of the rows of each file, a block each, in order.

    `numbered` adds a column `row`, from 0 over all rows.
    """
    return ray.data.read_datasource(Parts(uri, listed, numbered=numbered), override_num_blocks=max(1, len(listed)))


class Parts(Datasource):
    """Parts of a dataset.

    Each execution may read other rows, or the same in another order: what `SLICES` of its `DataContext` lists. `EPOCH`
    adds a column `epoch`.
    """

    def __init__(self, uri: DatasetURI, listed: Sequence[File], *, numbered: bool) -> None:
        super().__init__()
        self._uri, self._slices, self._numbered = uri, whole_files(listed), numbered

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(part.file.size for part in self._slices)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        slices, epoch = self._slices, None
        if data_context is not None:  # for an execution, not for metadata
            slices, epoch = data_context.get_config(SLICES, slices), data_context.get_config(EPOCH)
        firsts = starts(slices) if self._numbered else [None] * len(slices)
        return [_read_task(self._uri, part, first, epoch) for part, first in zip(slices, firsts, strict=True)]


def _read_task(uri: DatasetURI, part: Slice, first: int | None, epoch: int | None) -> ReadTask:
    def read() -> list[pa.Table]:
        table = read_slice(uri, part, first=first)
        return [table if epoch is None else table.append_column(EPOCH, pa.array([epoch] * len(part), pa.int64()))]

    metadata = BlockMetadata(
        num_rows=len(part), size_bytes=part.file.size, input_files=(part.file.path,), exec_stats=None
    )
    return ReadTask(read, metadata)
