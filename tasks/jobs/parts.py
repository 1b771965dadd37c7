"""Committed parts: exactly the listed rows, each file checked against its SHA-256 as it is read."""

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from storage import tables
from storage.hooks import reached
from storage.manifest import File
from storage.uri import DatasetURI

if TYPE_CHECKING:
    from ray.data import Dataset

T = TypeVar("T")
S = TypeVar("S")

_AHEAD = 2
"""Parts that are read before they are asked for, of at most 64 MiB of pixels each."""


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


def starts(slices: Sequence[Slice]) -> list[int]:
    """How many rows come before each of `slices`."""
    lengths = [part.stop - part.start for part in slices]
    return list(itertools.accumulate(lengths, initial=0))[:-1]


def read(uri: DatasetURI, slices: Sequence[Slice], *, numbered: bool = False) -> "Dataset":
    """The rows of `slices`, a block each, in their order; `numbered` adds a column `row`, counting from 0 over all."""
    from tasks.jobs.datasource import dataset  # the rest of this works without Ray

    return dataset(uri, slices, numbered=numbered)


def read_here(uri: DatasetURI, slices: Sequence[Slice], *, numbered: bool = False) -> Iterator[pa.Table]:
    """What `read` gives, a table for each slice, read in this process."""
    for part, first in zip(slices, starts(slices), strict=True):
        yield read_slice(uri, part, first=first if numbered else None)


def read_ahead(uri: DatasetURI, slices: Sequence[Slice]) -> Iterator[pa.Table]:
    """What `read_here` gives, the next ones being read meanwhile in other threads."""
    return in_threads(lambda part: read_slice(uri, part, first=None), slices, threads=_AHEAD)


def in_threads(function: Callable[[T], S], items: Iterable[T], *, threads: int) -> Iterator[S]:
    """`function` of every item, in order, those of the next ones being computed meanwhile in as many threads."""
    waiting: deque[Future[S]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def read_slice(uri: DatasetURI, part: Slice, *, first: int | None) -> pa.Table:
    """The rows of `part`, numbered from `first` on in a column `row` unless that is none."""
    reached("read", uri.child(part.file.path))
    table = tables.read_part(uri, part.file).slice(part.start, part.stop - part.start)
    if first is None:
        return table
    return table.append_column("row", pa.array(range(first, first + len(table)), pa.int64()))
