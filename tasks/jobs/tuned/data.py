"""Ray Data without the processes that a single job on a small machine does not need."""

import sys
from types import SimpleNamespace
from uuid import uuid4

import ray
from ray.data._internal import stats
from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as coordinator
from ray.data._internal.execution.operators import hash_shuffle_v2
from ray.data._internal.execution.operators.shuffle_operators import shuffle_reduce_operator

_TRAIN = "ray.train.v2._internal.execution.scaling_policy.autoscaling_coordinator_client"
"""Module of Ray Train that uses the same coordinator actor."""


def configure() -> None:
    """Run shuffles in the usual workers, and Ray Data's coordinator in this process; keep no statistics.

    Each process takes seconds to start, and wakes up a hundred times a second as long as it lives.
    """
    # Ray runs the tasks of a shuffle in separate processes, meant for gigabytes of rows; here they share processes.
    hash_shuffle_v2._SHUFFLE_MAP_RUNTIME_ENV.clear()
    shuffle_reduce_operator._SHUFFLE_REDUCE_RUNTIME_ENV.clear()
    # Replace an actor that would outlive the job: the coordinator that shares a cluster among jobs.
    local = _Here(_Coordinator(send_resources_request=lambda *_: None))  # a local Ray never adds nodes
    for module in filter(None, [coordinator, sys.modules.get(_TRAIN)]):
        module.get_or_create_autoscaling_coordinator = lambda: local  # type: ignore[attr-defined]
    # Only the dashboard shows the statistics, which an actor collects.
    for name in ("update_execution_metrics", "update_iteration_metrics", "register_dataset_to_stats_actor"):
        setattr(stats._StatsManager, name, lambda *_, **__: None)
    stats._StatsManager.gen_dataset_id_from_stats_actor = lambda: uuid4().hex


class _Here:
    """In-process object with the interface of an actor handle."""

    def __init__(self, called: object) -> None:
        self._called = called

    def __getattr__(self, name: str) -> SimpleNamespace:
        def remote(*positional: object, **keywords: object) -> "ray.ObjectRef[object]":
            return ray.put(getattr(self._called, name)(*positional, **keywords))

        return SimpleNamespace(remote=remote)


class _Coordinator(coordinator._AutoscalingCoordinatorActor):
    TICK_INTERVAL_S = 10**9  # practically never: it would look for nodes that come and go
