"""Backend on the Ray that this process is connected to, and the settings of Ray Data in it."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import ActorPoolStrategy, Dataset

from storage.manifest import File
from storage.uri import DatasetURI
from tasks.jobs import dataset_parts, datasource, events
from tasks.jobs.backends import tuned
from tasks.jobs.backends.base import Function, Route, Row, StageBackend, route_rows
from tasks.jobs.train import job as train
from tasks.resources import scaling
from tasks.stages import PredictSpec, TrainSpec

_SHUFFLED_AT_ONCE = 2**25
"""Bytes of rows that a local Ray collects before it compresses and sends them; Ray's default is 1 GiB."""


def configure(*, max_cpus: int | None) -> None:
    """Make Ray Data keep the order of rows, and print no progress bars or plans between the job's own lines.

    `max_cpus` is for a local Ray: it runs no more tasks at once than it has cores.
    """
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.raise_original_map_exception = True  # else a worker's error arrives without its type and message
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    if not max_cpus:
        return
    context.execution_options.resource_limits = context.execution_options.resource_limits.copy(cpu=max_cpus)
    context.shuffle_input_batch_bytes = _SHUFFLED_AT_ONCE
    if tuned.is_on(max_cpus):
        from tasks.jobs.backends.tuned import data

        data.configure()


class RayBackend(StageBackend):
    """Backend that runs tasks and actors of Ray Data, and Ray Train."""

    def __init__(self, *, threads: int | None) -> None:
        self.threads = threads

    def map(
        self, uri: DatasetURI, listed: Sequence[File], function: Function, /, **keywords: Any
    ) -> Iterator[pa.Table]:
        mapped = datasource.dataset(uri, dataset_parts.whole_files(listed), numbered=True).map_batches(
            function, batch_format="pyarrow", batch_size=None, fn_kwargs=keywords
        )
        yield from mapped.iter_batches(batch_format="pyarrow", batch_size=None, prefetch_batches=0)

    def regroup(
        self, uri: DatasetURI, routes: Sequence[Route], function: Function, /, **keywords: Any
    ) -> Iterator[Row]:
        source: Dataset | None = None
        for listed, targets in routes:
            sent = datasource.dataset(uri, dataset_parts.whole_files(listed), numbered=True).map_batches(
                _send, batch_format="pyarrow", batch_size=None, fn_kwargs={"lookup": [ray.put(targets)]}
            )
            source = sent if source is None else source.union(sent)
        assert source is not None
        num_parts = 1 + max(int(targets[:, 0].max()) for _, targets in routes)
        written = source.groupby("part", num_partitions=num_parts).map_groups(
            function, batch_format="pyarrow", fn_kwargs=keywords
        )
        yield from written.iter_rows()

    def each(self, function: Callable[..., Row], items: Sequence[Row], /, **keywords: Any) -> Iterator[Row]:
        source = ray.data.from_items(list(items), override_num_blocks=len(items))
        yield from source.map(function, fn_kwargs=keywords).iter_rows()

    def pool(self, worker: Callable[..., Any], items: Sequence[Row], spec: PredictSpec) -> Iterator[Row]:
        scale = scaling.resolve_growing(
            spec.workers, threads=self.threads, needs=spec.needs, limit_s=spec.stall_s, on_wait=events.write_line
        )
        device = "cuda" if scale.use_gpu else "cpu"
        shared = {"threads": scale.threads, "sharing": scale.per_node, "device": device}
        done = ray.data.from_items(list(items), override_num_blocks=len(items)).map_batches(
            worker,
            fn_constructor_kwargs={"spec": spec.model_dump_json()} | shared,
            compute=ActorPoolStrategy(
                size=min(scale.workers, len(items)),
                # A GPU computes a part while the next one is read; on a CPU a second thread would compete for cores.
                max_concurrent_calls_per_actor=2 if scale.use_gpu else 1,
                enable_true_multi_threading=scale.use_gpu,
            ),
            batch_size=1,
            num_cpus=scale.cpus,
            num_gpus=1 if scale.use_gpu else 0,
            **({"accelerator_type": spec.needs.accelerator_type} if spec.needs.accelerator_type else {}),
        )
        yield from done.iter_rows()

    def train(self, spec: TrainSpec) -> None:
        train.run(spec)


def _send(table: pa.Table, *, lookup: list[ray.ObjectRef]) -> pa.Table:
    return route_rows(table, ray.get(lookup[0]))
