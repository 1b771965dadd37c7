"""The operations of Ray Data that jobs use, in this process and without Ray, where a debugger reaches them.

A job is one pipeline of these operations, on `LocalData` or on `RayData`; its result does not depend on which.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from storage import process
from storage.kinds import DatasetURI
from storage.manifest import JSON, File
from tasks.jobs import dataset_parts
from tasks.jobs.spec import JobSpec
from tasks.resources import machine, scaling

_MOST_THREADS = 16
"""Most rows to work on at once, each of which may hold a part of 64 MiB of pixels."""
Row = JSON


class LocalDataset:
    """Blocks of rows, with the methods of `ray.data.Dataset` that jobs use; options that only Ray needs do nothing."""

    def __init__(self, blocks: Iterable[Any]) -> None:
        self._blocks = blocks
        """Tables, or dicts of columns whose values are any objects."""

    def map_batches(self, fn: Callable[..., Any], *, fn_kwargs: Mapping[str, object], **_: object) -> "LocalDataset":
        """Apply `fn` to every block."""
        return LocalDataset(fn(block, **fn_kwargs) for block in self._blocks)

    def map(
        self,
        fn: Callable[..., Any],
        *,
        fn_kwargs: Mapping[str, object] | None = None,
        fn_constructor_kwargs: Mapping[str, object] | None = None,
        **_: object,
    ) -> "LocalDataset":
        """Apply `fn` to every row, in threads; if it is a class, its method `over` yields the new rows, in order."""
        rows, call = list(self.iter_rows()), functools.partial(fn, **fn_kwargs or {})
        if isinstance(fn, type):
            done: Iterable[Row] = fn(**fn_constructor_kwargs or {}).over(rows)
        elif len(rows) == 1:  # in this thread: a deadline can interrupt it even while it writes
            done = map(call, rows)
        else:
            done = process.in_threads(call, rows, threads=min(_MOST_THREADS, scaling.cores_here()))
        return LocalDataset({name: [value] for name, value in row.items()} for row in done)

    def union(self, *others: "LocalDataset") -> "LocalDataset":
        """Append the blocks of `others`."""
        return LocalDataset(block for dataset in (self, *others) for block in dataset.iter_batches())

    def groupby(self, key: str, **_: object) -> "LocalDataset":
        """Make a block of all rows with the same `key`; all rows are in memory at once."""
        table = pa.concat_tables(self._blocks)
        values = table[key].to_numpy()
        order = np.argsort(values, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(values[order])) + 1)
        return LocalDataset(table.take(rows) for rows in groups)

    map_groups = map_batches

    def iter_batches(self, **_: object) -> Iterator[Any]:
        """Yield the blocks."""
        yield from self._blocks

    def iter_rows(self) -> Iterator[Row]:
        """Yield the rows of blocks that are dicts of columns."""
        for block in self._blocks:
            yield from (dict(zip(block, row, strict=True)) for row in zip(*block.values(), strict=True))


class LocalData:
    """Where the rows of a job come from, without Ray."""

    is_ray = False

    def read_parts(self, uri: DatasetURI, listed: Sequence[File]) -> LocalDataset:
        """Return the rows of each listed file, a block each, in order; column `row` counts over all of them."""
        return LocalDataset(dataset_parts.read_slice(uri, part) for part in dataset_parts.whole_files(listed))

    def from_items(self, items: Sequence[object]) -> LocalDataset:
        """Return a row for each object, in the column `item`."""
        return LocalDataset({"item": [item]} for item in items)

    def actor_pool(self, spec: JobSpec[Any], *, most: int) -> JSON:
        """Return the options of `map` for at most so many workers `cls(stage=, threads=, sharing=, device=)`.

        On `cuda` each has a GPU to itself.
        """
        device, threads = machine.device(spec.needs.device), spec.threads or scaling.cores_here()
        return {"fn_constructor_kwargs": {"stage": spec.stage, "threads": threads, "sharing": 1, "device": device}}
