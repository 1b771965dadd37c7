"""Ray Data over committed parts: exactly the listed rows, each file checked against its SHA-256 as it is read."""

import dataclasses
from collections.abc import Iterable, Sequence

import pyarrow as pa
import ray
from ray.data import Dataset
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from storage import tables
from storage.manifest import File
from storage.uri import DatasetURI


@dataclasses.dataclass(frozen=True)
class Slice:
    """Rows `start` to `stop` of one part."""

    file: File
    start: int
    stop: int


def whole(listed: Sequence[File]) -> list[Slice]:
    """Every row of every file."""
    return [Slice(file, 0, file.rows or 0) for file in listed]


def shard(listed: Sequence[File], *, rank: int, world_size: int) -> list[Slice]:
    """The rows of `rank`: shards cover every row exactly once and differ by at most one row."""
    total = sum(file.rows or 0 for file in listed)
    first, last = total * rank // world_size, total * (rank + 1) // world_size
    slices, offset = [], 0
    for file in listed:
        rows = file.rows or 0
        start, stop = max(first - offset, 0), min(last - offset, rows)
        if start < stop:
            slices.append(Slice(file, start, stop))
        offset += rows
    return slices


def read(uri: DatasetURI, slices: Sequence[Slice], *, numbered: bool = False) -> Dataset:
    """The rows of `slices`, a block each, in their order; `numbered` adds a column `row`, counting from 0 over all."""
    return ray.data.read_datasource(_Parts(uri, slices, numbered), override_num_blocks=max(1, len(slices)))


class _Parts(Datasource):
    """Ray Data's interface to committed parts: the manifest lists the files, so there is nothing to probe."""

    def __init__(self, uri: DatasetURI, slices: Sequence[Slice], numbered: bool) -> None:
        super().__init__()
        self._uri, self._slices, self._numbered = uri, list(slices), numbered

    def get_name(self) -> str:
        return "Parts"

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(part.file.size for part in self._slices)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, *args: object, **kwargs: object
    ) -> list[ReadTask]:
        lengths = [part.stop - part.start for part in self._slices]
        offsets = [sum(lengths[:index]) if self._numbered else None for index in range(len(lengths))]
        return [_read_task(self._uri, part, offset) for part, offset in zip(self._slices, offsets, strict=True)]


def _read_task(uri: DatasetURI, part: Slice, offset: int | None) -> ReadTask:
    def read_rows() -> Iterable[pa.Table]:
        table = tables.read_part(uri, part.file).slice(part.start, part.stop - part.start)
        if offset is not None:
            table = table.append_column("row", pa.array(range(offset, offset + len(table)), pa.int64()))
        return [table]

    metadata = BlockMetadata(
        num_rows=part.stop - part.start,
        size_bytes=part.file.size,
        input_files=(part.file.path,),
        exec_stats=None,
        task_exec_stats=None,
    )
    return ReadTask(read_rows, metadata)
