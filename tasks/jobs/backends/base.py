"""Interface of the backends that process a stage's rows and parts; the modules `ray` and `in_process` implement it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from storage.manifest import File
from storage.uri import DatasetURI
from tasks.jobs.spec import PredictSpec, TrainSpec

Route = tuple[Sequence[File], np.ndarray]
"""Files, and for each of their rows its target part and position: (rows, 2), int64; -1 drops the row."""
Function = Callable[..., pa.Table]
"""Function from a table, and keyword arguments, to another table."""
Row = dict[str, Any]


class StageBackend(Protocol):
    """Backend of a stage; results do not depend on which process computes them."""

    def map(
        self, uri: DatasetURI, listed: Sequence[File], function: Function, /, **keywords: Any
    ) -> Iterator[pa.Table]:
        """Yield `function(table, **keywords)` for each listed file in order; column `row` counts over all of them."""

    def regroup(
        self, uri: DatasetURI, routes: Sequence[Route], function: Function, /, **keywords: Any
    ) -> Iterator[Row]:
        """Send rows to parts; yield the rows of `function(table, **keywords)` for each part, parts in any order.

        `table` has the rows of one part in any order, with columns `part` and `position`.
        """

    def each(self, function: Callable[..., Row], items: Sequence[Row], /, **keywords: Any) -> Iterator[Row]:
        """Yield `function(item, **keywords)` of every item, in order."""

    def pool(self, worker: Callable[..., Any], items: Sequence[Row], spec: PredictSpec) -> Iterator[Row]:
        """Yield `part(**item)` of every item, in any order.

        Instances are made by `worker(spec=, threads=, sharing=, device=)`; on `cuda` each has a GPU to itself.
        """

    def train(self, spec: TrainSpec) -> None:
        """Run a training and commit its checkpoint."""


def route_rows(table: pa.Table, targets: np.ndarray) -> pa.Table:
    """Drop rows whose target is -1; replace column `row` by the columns `part` and `position`."""
    target = targets[table["row"].to_numpy()]
    keep = np.flatnonzero(target[:, 0] >= 0)
    sent = table.drop_columns("row").take(keep).replace_schema_metadata(None)
    part, position = target[keep].T
    return sent.append_column("part", pa.array(part)).append_column("position", pa.array(position))
