"""Ray Data on the Ray that this process is connected to: where the rows of a job come from, and the settings."""

import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from storage.kinds import DatasetURI
from storage.manifest import JSON, File
from tasks.jobs import events, tuned
from tasks.jobs.dataset_parts import Slice, read_slice, whole_files
from tasks.jobs.local_data import LocalData
from tasks.jobs.spec import JobSpec
from tasks.resources import scaling
from tasks.resources.needs import Workers
from tasks.resources.scaling import Scale

SLICES, EPOCH = "slices", "epoch"
"""Keys of a dataset's `DataContext`: what the next execution reads instead of all rows, and the value of `epoch`."""
_SHUFFLED_AT_ONCE = 2**25
"""Bytes of rows that a local Ray collects before it compresses and sends them; Ray's default is 1 GiB."""


def configure(*, max_cpus: int | None) -> None:
    """Make Ray Data keep the order of rows, and print no progress bars or plans between the job's own lines.

    `max_cpus` is for a local Ray: it runs no more tasks at once than it has cores.
    """
    context = DataContext.get_current()
    context.execution_options.preserve_order = True
    context.raise_original_map_exception = True  # else a worker's error arrives without its type and message
    context.enable_fallback_to_arrow_object_ext_type = True  # columns of Python objects, without a warning
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    if not max_cpus:
        return
    context.execution_options.resource_limits = context.execution_options.resource_limits.copy(cpu=max_cpus)
    context.shuffle_input_batch_bytes = _SHUFFLED_AT_ONCE
    if tuned.is_on(max_cpus):
        from tasks.jobs.tuned import data

        data.configure()


def resolve_workers(spec: JobSpec[Any], workers: Workers) -> Scale:
    """Choose the workers of a job; a cluster has as long as the job may stall to add what is missing."""
    limit_s, on_wait = spec.limits.stall_s, events.write_line
    return scaling.resolve_growing(workers, threads=spec.threads, needs=spec.needs, limit_s=limit_s, on_wait=on_wait)


class Parts(Datasource):
    """Parts of a dataset: the manifest lists files and rows, so Ray need not look at the files first.

    Each execution may read other rows, or the same in another order: what `SLICES` of its `DataContext` lists. `EPOCH`
    adds a column `epoch`.
    """

    def __init__(self, uri: DatasetURI, listed: Sequence[File]) -> None:
        super().__init__()
        self._uri, self._slices = uri, whole_files(listed)

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(part.file.size for part in self._slices)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        slices, epoch = self._slices, None
        if data_context is not None:  # for an execution, not for metadata
            slices, epoch = data_context.get_config(SLICES, slices), data_context.get_config(EPOCH)
        return [_read_task(self._uri, part, epoch) for part in slices]


def _read_task(uri: DatasetURI, part: Slice, epoch: int | None) -> ReadTask:
    def read() -> list[pa.Table]:
        table = read_slice(uri, part)
        return [table if epoch is None else table.append_column(EPOCH, pa.array([epoch] * len(part), pa.int64()))]

    metadata = BlockMetadata(
        num_rows=len(part), size_bytes=part.file.size, input_files=(part.file.path,), exec_stats=None
    )
    return ReadTask(read, metadata)


class RayData(LocalData):
    """Datasets of Ray Data."""

    is_ray = True

    def read_parts(self, uri: DatasetURI, listed: Sequence[File]) -> Dataset:
        return ray.data.read_datasource(Parts(uri, listed), override_num_blocks=max(1, len(listed)))

    def from_items(self, items: Sequence[object]) -> Dataset:
        return ray.data.from_items(list(items), override_num_blocks=len(items))

    def actor_pool(self, spec: JobSpec[Any], *, most: int) -> JSON:
        needs, scale = spec.needs, resolve_workers(spec, spec.needs.workers)
        shared = {"threads": scale.threads, "sharing": scale.per_node, "device": "cuda" if scale.use_gpu else "cpu"}
        options: JSON = {
            "fn_constructor_kwargs": {"stage": spec.stage} | shared,
            "compute": ActorPoolStrategy(
                size=min(scale.workers, most),
                # A GPU computes a part while others are read and written; on a CPU they would compete for cores.
                max_concurrent_calls_per_actor=3 if scale.use_gpu else 1,
                enable_true_multi_threading=scale.use_gpu,
            ),
            "num_cpus": scale.cpus,
            "num_gpus": 1 if scale.use_gpu else 0,
        }
        return options | ({"accelerator_type": needs.accelerator_type} if needs.accelerator_type else {})
