"""Backend that processes a stage's rows in this process, where a debugger reaches it; `ray` distributes them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from storage import process
from storage.manifest import File
from storage.uri import DatasetURI
from tasks.jobs import dataset_parts
from tasks.resources import machine, scaling
from tasks.stages import PredictSpec, TrainSpec

_MOST_THREADS = 16
"""Most items to work on at once, each of which may hold a part of 64 MiB of pixels."""
Route = tuple[Sequence[File], np.ndarray]
"""Files, and for each of their rows its target part and position: (rows, 2), int64; -1 drops the row."""
Function = Callable[..., pa.Table]
"""Function from a table, and keyword arguments, to another table."""
Row = dict[str, Any]


class StageBackend:
    """Backend of a stage, without Ray; results do not depend on which process computes them."""

    def map(
        self, uri: DatasetURI, listed: Sequence[File], function: Function, /, **keywords: Any
    ) -> Iterator[pa.Table]:
        """Yield `function(table, **keywords)` for each listed file in order; column `row` counts over all of them."""
        for table in dataset_parts.read_numbered(uri, listed):
            yield function(table, **keywords)

    def regroup(
        self, uri: DatasetURI, routes: Sequence[Route], function: Function, /, **keywords: Any
    ) -> Iterator[Row]:
        """Send rows to parts; yield the rows of `function(table, **keywords)` for each part, parts in any order.

        `table` has the rows of one part in any order, with columns `part` and `position`. Here all rows are in memory
        at once.
        """
        sent = pa.concat_tables(
            route_rows(table, targets)
            for listed, targets in routes
            for table in dataset_parts.read_numbered(uri, listed)
        )
        part = sent["part"].to_numpy()
        order = np.argsort(part, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(part[order])) + 1):
            yield from function(sent.take(rows), **keywords).to_pylist()

    def each(self, function: Callable[..., Row], items: Sequence[Row], /, **keywords: Any) -> Iterator[Row]:
        """Yield `function(item, **keywords)` of every item, in order."""
        if len(items) == 1:  # in this thread: a deadline can interrupt it even while it writes
            yield function(items[0], **keywords)
            return
        threads = min(_MOST_THREADS, scaling.cores_here())
        yield from process.in_threads(lambda item: function(item, **keywords), items, threads=threads)

    def pool(self, worker: Callable[..., Any], items: Sequence[Row], spec: PredictSpec) -> Iterator[Row]:
        """Yield `part(**item)` of every item, in any order.

        Instances are made by `worker(spec=, threads=, sharing=, device=)`; on `cuda` each has a GPU to itself.
        """
        device, threads = machine.device(spec.needs.device), spec.threads or scaling.cores_here()
        only = worker(spec=spec.model_dump_json(), threads=threads, sharing=1, device=device)
        for item in items:
            yield only.part(**item)

    def train(self, spec: TrainSpec) -> None:
        """Run a training and commit its checkpoint."""
        from tasks.jobs.train import single_process  # imports torch, which the other stages do not need

        single_process.run(spec)


def route_rows(table: pa.Table, targets: np.ndarray) -> pa.Table:
    """Drop rows whose target is -1; replace column `row` by the columns `part` and `position`."""
    target = targets[table["row"].to_numpy()]
    keep = np.flatnonzero(target[:, 0] >= 0)
    sent = table.drop_columns("row").take(keep).replace_schema_metadata(None)
    part, position = target[keep].T
    return sent.append_column("part", pa.array(part)).append_column("position", pa.array(position))
