"""Ray Data source for committed parts: the manifest lists files and rows, so Ray need not look at the files first."""

from collections.abc import Sequence

import ray
from ray.data import Dataset
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from storage.uri import DatasetURI
from tasks.jobs.dataset_parts import Slice, read_slice, starts


def dataset(uri: DatasetURI, slices: Sequence[Slice], *, numbered: bool = False) -> Dataset:
    """Return a dataset of `slices`, one block each, in order; `numbered` adds a column `row`, from 0 over all rows."""
    return ray.data.read_datasource(_Parts(uri, slices, numbered), override_num_blocks=max(1, len(slices)))


class _Parts(Datasource):
    def __init__(self, uri: DatasetURI, slices: Sequence[Slice], numbered: bool) -> None:
        super().__init__()
        self._uri, self._slices, self._numbered = uri, list(slices), numbered

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(part.file.size for part in self._slices)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, *args: object, **kwargs: object
    ) -> list[ReadTask]:
        offsets = starts(self._slices) if self._numbered else [None] * len(self._slices)
        return [_read_task(self._uri, part, offset) for part, offset in zip(self._slices, offsets, strict=True)]


def _read_task(uri: DatasetURI, part: Slice, offset: int | None) -> ReadTask:
    metadata = BlockMetadata(
        num_rows=len(part),
        size_bytes=part.file.size,
        input_files=(part.file.path,),
        exec_stats=None,
    )
    return ReadTask(lambda: [read_slice(uri, part, first=offset)], metadata)
