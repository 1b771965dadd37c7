"""The work of a stage without Ray: all of it in this process, where a debugger reaches it."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from storage.manifest import File
from storage.uri import DatasetURI
from tasks.jobs import driver, engine, parts
from tasks.jobs.engine import Function, Route, Row, send
from tasks.jobs.spec import JobSpec, PredictSpec, TrainSpec

_MOST_THREADS = 16
"""Items that are worked on side by side, each of which may hold a part of 64 MiB of pixels."""


def run(spec: JobSpec, *, tell: Callable[[str], None]) -> None:
    """Do what the job of `spec` does, its lines going to `tell`; what it raises comes out as it is."""
    with driver.telling(tell), driver.held(spec) as is_ours:
        if is_ours:
            engine.work(spec, InProcess())


class InProcess:
    """Everything here; `regroup` holds all rows at once."""

    def map(
        self, uri: DatasetURI, listed: Sequence[File], function: Function, /, **keywords: Any
    ) -> Iterator[pa.Table]:
        for table in parts.read_here(uri, parts.whole(listed), numbered=True):
            yield function(table, **keywords)

    def regroup(
        self, uri: DatasetURI, routes: Sequence[Route], function: Function, /, **keywords: Any
    ) -> Iterator[Row]:
        sent = pa.concat_tables(
            send(table, targets)
            for listed, targets in routes
            for table in parts.read_here(uri, parts.whole(listed), numbered=True)
        )
        part = sent["part"].to_numpy()
        order = np.argsort(part, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(part[order])) + 1):
            yield from function(sent.take(rows), **keywords).to_pylist()

    def each(self, function: Callable[..., Row], items: Sequence[Row], /, **keywords: Any) -> Iterator[Row]:
        if len(items) == 1:  # in this thread, which a deadline can interrupt even where it writes
            yield function(items[0], **keywords)
            return
        threads = min(_MOST_THREADS, os.cpu_count() or 1)
        yield from parts.in_threads(lambda item: function(item, **keywords), items, threads=threads)

    def pool(self, worker: Callable[..., Any], items: Sequence[Row], spec: PredictSpec) -> Iterator[Row]:
        only = worker(spec=spec.model_dump_json(), threads=os.cpu_count(), sharing=1)
        for item in items:
            yield only.part(**item)

    def train(self, spec: TrainSpec) -> None:
        from tasks.jobs import train_here  # torch: the other stages may do without

        train_here.run(spec)
