"""Backend without Ray: all work in this process, where a debugger reaches it."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from storage.manifest import File
from storage.uri import DatasetURI
from tasks.jobs import dataset_parts
from tasks.jobs.backends.base import Function, Route, Row, route_rows
from tasks.jobs.spec import PredictSpec, TrainSpec
from tasks.resources import machine

_MOST_THREADS = 16
"""Most items to work on at once, each of which may hold a part of 64 MiB of pixels."""


class InProcessBackend:
    """Backend that runs everything in this process; `regroup` holds all rows in memory at once."""

    def map(
        self, uri: DatasetURI, listed: Sequence[File], function: Function, /, **keywords: Any
    ) -> Iterator[pa.Table]:
        for table in dataset_parts.read_numbered(uri, listed):
            yield function(table, **keywords)

    def regroup(
        self, uri: DatasetURI, routes: Sequence[Route], function: Function, /, **keywords: Any
    ) -> Iterator[Row]:
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
        if len(items) == 1:  # in this thread: a deadline can interrupt it even while it writes
            yield function(items[0], **keywords)
            return
        threads = min(_MOST_THREADS, os.cpu_count() or 1)
        yield from dataset_parts.in_threads(lambda item: function(item, **keywords), items, threads=threads)

    def pool(self, worker: Callable[..., Any], items: Sequence[Row], spec: PredictSpec) -> Iterator[Row]:
        device, threads = machine.device(spec.needs.device), spec.threads or os.cpu_count()
        only = worker(spec=spec.model_dump_json(), threads=threads, sharing=1, device=device)
        for item in items:
            yield only.part(**item)

    def train(self, spec: TrainSpec) -> None:
        from tasks.jobs.train import single_process  # imports torch, which the other stages do not need

        single_process.run(spec)
