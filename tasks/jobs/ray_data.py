"""How a job's driver sets up Ray Data."""

import logging
import sys
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import ray.data
from ray.data._internal import stats
from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as coordinator
from ray.data._internal.execution.operators import hash_shuffle_v2
from ray.data._internal.execution.operators.shuffle_operators import shuffle_reduce_operator

from tasks.jobs import dashboard

_SHUFFLED_AT_ONCE = 2**25
"""Bytes of rows that a local Ray collects before it compresses and sends them on; Ray by itself waits for 1 GiB."""
_TRAIN = "ray.train.v2._internal.execution.scaling_policy.autoscaling_coordinator_client"
"""The module of Ray Train's that asks the same actor."""


def configure(*, max_cpus: int | None) -> None:
    """Deterministic order everywhere, no progress bars or plans among the job's own lines.

    `max_cpus` is for a local Ray: no more tasks at once than it has cores, and as few processes as can be. Each takes
    seconds to start, and wakes up a hundred times a second as long as it lives.
    """
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.raise_original_map_exception = True  # else a worker's error comes without its message and its type
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    if not max_cpus:
        return
    context.execution_options.resource_limits = context.execution_options.resource_limits.copy(cpu=max_cpus)
    context.shuffle_input_batch_bytes = _SHUFFLED_AT_ONCE
    # What keeps the tasks of a shuffle in processes of their own, for the sake of rows by the gigabyte.
    hash_shuffle_v2._SHUFFLE_MAP_RUNTIME_ENV.clear()
    shuffle_reduce_operator._SHUFFLE_REDUCE_RUNTIME_ENV.clear()
    # Two actors that would outlive the job: what shares a cluster among many, and figures for a full dashboard.
    here = _Here(_Coordinator(send_resources_request=lambda *_: None))  # nobody to ask for more
    for module in filter(None, [coordinator, sys.modules.get(_TRAIN)]):
        module.get_or_create_autoscaling_coordinator = lambda: here  # type: ignore[attr-defined]
    if dashboard.kind() == dashboard.FULL:
        return
    for name in ("update_execution_metrics", "update_iteration_metrics", "register_dataset_to_stats_actor"):
        setattr(stats._StatsManager, name, lambda *_, **__: None)
    stats._StatsManager.gen_dataset_id_from_stats_actor = lambda: uuid4().hex


class _Here:
    """Called as an actor is, an object of this process."""

    def __init__(self, called: Any) -> None:
        self._called = called

    def __getattr__(self, name: str) -> SimpleNamespace:
        def remote(*positional: Any, **keywords: Any) -> Any:
            return ray.put(getattr(self._called, name)(*positional, **keywords))

        return SimpleNamespace(remote=remote)


class _Coordinator(coordinator._AutoscalingCoordinatorActor):
    TICK_INTERVAL_S = 10**9  # it would look for nodes that come and go
