"""Readers of committed parts: exactly the listed rows; each file's SHA-256 is verified while it is read."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from storage import process, tables
from storage.failpoints import failpoint
from storage.kinds import DatasetURI
from storage.manifest import File, Manifest
from tasks.learning import images
from tasks.learning.epoch_metrics import batch_start

_AHEAD = 2
"""Parts to read in advance; each has at most 64 MiB of pixels."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """Rows `start` to `stop` (exclusive) of one part, whose first row has the number `first` in its split."""

    file: File
    first: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def is_encoded(dataset: Manifest) -> bool:
    """Return whether a dataset's images are stored as their files' bytes."""
    return images.store_of(dataset.columns["metadata"]) == images.FILES


def whole_files(listed: Sequence[File]) -> list[Slice]:
    """Return slices with every row of every file."""
    rows = [file.rows or 0 for file in listed]
    firsts = itertools.accumulate(rows, initial=0)
    return [Slice(file, first, 0, stop) for file, first, stop in zip(listed, firsts, rows, strict=False)]


def shard(listed: Sequence[File], *, rank: int, world_size: int, batch_size: int | None = None) -> list[Slice]:
    """Return the rows of `rank`; the shards of all ranks cover every row exactly once.

    Without `batch_size`, shards differ by at most one row. With it, a shard's share of all rows is the rank's share of
    a global batch, so that every rank has rows for as many steps as there are whole batches in all rows.
    """
    total = sum(file.rows or 0 for file in listed)
    whole = batch_size or world_size
    first, last = (total * batch_start(whole, rank=edge, world_size=world_size) // whole for edge in (rank, rank + 1))
    slices = []
    for part in whole_files(listed):
        start, stop = max(first - part.first, 0), min(last - part.first, part.stop)
        if start < stop:
            slices.append(dataclasses.replace(part, start=start, stop=stop))
    return slices


def read_ahead(uri: DatasetURI, slices: Sequence[Slice]) -> Iterator[pa.Table]:
    """Yield each slice's table, in order; other threads read the next ones meanwhile."""
    return process.in_threads(lambda part: read_slice(uri, part), slices, threads=_AHEAD)


def read_slice(uri: DatasetURI, part: Slice) -> pa.Table:
    """Return the rows of `part`, with a column `row`: their numbers in the split."""
    failpoint("read", uri.child(part.file.path))
    table = tables.read_part(uri, part.file).slice(part.start, len(part))
    return table.append_column("row", pa.array(np.arange(part.start, part.stop) + part.first))
