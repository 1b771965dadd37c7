"""Readers of committed parts: exactly the listed rows; each file's SHA-256 is verified while it is read."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from storage import process, tables
from storage.failpoints import failpoint
from storage.manifest import File, Manifest
from storage.uri import DatasetURI
from tasks.learning import images
from tasks.learning.epoch_metrics import batch_start

_AHEAD = 2
"""Parts to read in advance; each has at most 64 MiB of pixels."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """Rows `start` to `stop` (exclusive) of one part."""

    file: File
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def is_encoded(dataset: Manifest) -> bool:
    """Return whether a dataset's images are stored as their files' bytes."""
    return images.store_of(dataset.columns["metadata"]) == images.FILES


def whole_files(listed: Sequence[File]) -> list[Slice]:
    """Return slices with every row of every file."""
    return [Slice(file, 0, file.rows or 0) for file in listed]


def shard(listed: Sequence[File], *, rank: int, world_size: int, batch_size: int | None = None) -> list[Slice]:
    """Return the rows of `rank`; the shards of all ranks cover every row exactly once.

    Without `batch_size`, shards differ by at most one row. With it, a shard's share of all rows is the rank's share of
    a global batch, so that every rank has rows for as many steps as there are whole batches in all rows.
    """
    total = sum(file.rows or 0 for file in listed)
    whole = batch_size or world_size
    first, last = (total * batch_start(whole, rank=edge, world_size=world_size) // whole for edge in (rank, rank + 1))
    slices, offset = [], 0
    for file in listed:
        rows = file.rows or 0
        start, stop = max(first - offset, 0), min(last - offset, rows)
        if start < stop:
            slices.append(Slice(file, start, stop))
        offset += rows
    return slices


def shuffled(slices: Sequence[Slice], seed: int | None) -> list[Slice]:
    """Return `slices` in the order that `seed` gives, the same on every machine; as they are if it is None."""
    return list(slices) if seed is None else random.Random(seed).sample(slices, len(slices))


def starts(slices: Sequence[Slice]) -> list[int]:
    """Return for each of `slices` the number of rows before it."""
    return list(itertools.accumulate(map(len, slices), initial=0))[:-1]


def read_numbered(uri: DatasetURI, listed: Sequence[File]) -> Iterator[pa.Table]:
    """Yield a table for each file, in order, with a column `row`, counting from 0 over all rows."""
    slices = whole_files(listed)
    for part, first in zip(slices, starts(slices), strict=True):
        yield read_slice(uri, part, first=first)


def read_ahead(
    uri: DatasetURI, slices: Sequence[Slice], *, transform: Callable[[pa.Table], pa.Table] = lambda table: table
) -> Iterator[pa.Table]:
    """Yield `transform` of each slice's table, in order; other threads read and transform the next ones meanwhile."""
    return process.in_threads(lambda part: transform(read_slice(uri, part, first=None)), slices, threads=_AHEAD)


def read_slice(uri: DatasetURI, part: Slice, *, first: int | None) -> pa.Table:
    """Return the rows of `part`; unless `first` is None, add a column `row` that counts from it."""
    failpoint("read", uri.child(part.file.path))
    table = tables.read_part(uri, part.file).slice(part.start, len(part))
    if first is None:
        return table
    return table.append_column("row", pa.array(range(first, first + len(table)), pa.int64()))
