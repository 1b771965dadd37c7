"""Where the rows and parts of a stage are worked on: see `tasks.jobs.on_ray` and `tasks.jobs.in_process`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from storage.manifest import File
from storage.uri import DatasetURI
from tasks.jobs.spec import IngestSpec, JobSpec, PredictSpec, PreprocessSpec, TrainSpec

Route = tuple[Sequence[File], np.ndarray]
"""Files, and for each of their rows the part it goes to and its position there: (rows, 2), int64; -1 for nowhere."""
Function = Callable[..., pa.Table]
"""From a table, and whatever else it is given by keyword, to another."""
Row = dict[str, Any]


class Engine(Protocol):
    """Gives the same whichever process computes it."""

    def map(
        self, uri: DatasetURI, listed: Sequence[File], function: Function, /, **keywords: Any
    ) -> Iterator[pa.Table]:
        """`function(table, **keywords)` of each listed file, in order; column `row` counts over all of them."""

    def regroup(
        self, uri: DatasetURI, routes: Sequence[Route], function: Function, /, **keywords: Any
    ) -> Iterator[Row]:
        """The rows of `function(table, **keywords)` for each part that rows are sent to, parts in any order.

        `table` has the rows of one part in any order, with columns `part` and `position`.
        """

    def each(self, function: Callable[..., Row], items: Sequence[Row], /, **keywords: Any) -> Iterator[Row]:
        """`function(item, **keywords)` of every item, in order."""

    def pool(self, worker: Callable[..., Any], items: Sequence[Row], spec: PredictSpec) -> Iterator[Row]:
        """`part(**item)` of every item, in any order, done by some `worker(spec=, threads=, sharing=)`."""

    def train(self, spec: TrainSpec) -> None:
        """Commit the checkpoint of a training."""


def work(spec: JobSpec, engine: Engine) -> None:
    """Do what the job of `spec` is there for; what the other jobs need is not imported."""
    if isinstance(spec, TrainSpec):
        engine.train(spec)
    elif isinstance(spec, PreprocessSpec):
        from tasks.jobs import preprocess

        preprocess.run(spec, engine)
    elif isinstance(spec, IngestSpec):
        from tasks.jobs.ingest import job

        job.run(spec, engine)
    elif isinstance(spec, PredictSpec):
        from tasks.jobs import predict

        predict.run(spec, engine)
    else:
        raise AssertionError(spec)


def send(table: pa.Table, targets: np.ndarray) -> pa.Table:
    """The rows of `table` that go anywhere, each with its part and its position there; `row` is used up."""
    target = targets[table["row"].to_numpy()]
    keep = np.flatnonzero(target[:, 0] >= 0)
    sent = table.drop_columns("row").take(keep).replace_schema_metadata(None)
    part, position = target[keep].T
    return sent.append_column("part", pa.array(part)).append_column("position", pa.array(position))
