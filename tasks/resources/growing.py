"""Clusters that grow: ask the connected cluster for what a stage needs, and wait for its nodes up to a limit."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import ray
from ray.util import placement_group, remove_placement_group

from tasks.resources import scaling
from tasks.resources.scaling import Needs, Resources, Scale, Workers

_POLL_S = 1.0
_Result = TypeVar("_Result")


def resolve(
    workers: Workers, *, threads: int | None, needs: Needs, limit_s: float, on_wait: Callable[[str], None]
) -> Scale:
    """Choose number and size of workers on the connected Ray's nodes; wait for a cluster to have enough of them.

    The cluster is told meanwhile what is missing, so that an autoscaler adds nodes.

    Args:
        workers: As asked for.
        threads: Total of this machine for a local Ray, which adds no nodes; None on a cluster.
        needs: Resources that each worker requires.
        limit_s: Longest wait, in seconds.
        on_wait: Called once with what is missing, if it has to wait.

    Raises:
        ValueError: They are too few after `limit_s`; the message names what was asked for and what the cluster has.
    """

    def attempt() -> Scale:
        return scaling.resolve(workers, threads=threads, nodes=scaling.nodes(), needs=needs)

    if threads is not None:
        return attempt()
    return _retry(attempt, scaling.bundles(workers, needs, scaling.nodes()), limit_s, on_wait)


def await_a_cpu(*, limit_s: float, on_wait: Callable[[str], None]) -> None:
    """Wait until a task can run: a cluster may have shrunk to a head without CPUs. Otherwise like `resolve`."""

    def attempt() -> None:
        if not scaling.cpus(scaling.nodes()):
            raise ValueError("a stage needs 1 CPU, but no node of this cluster has any; add a node")

    _retry(attempt, [{"CPU": 1}], limit_s, on_wait)


def _retry(
    attempt: Callable[[], _Result], bundles: Sequence[Resources], limit_s: float, on_wait: Callable[[str], None]
) -> _Result:
    demand, limit, until = None, f"{limit_s / 60:.3g} min", time.monotonic() + limit_s
    try:
        while True:
            try:
                return attempt()
            except ValueError as error:
                if time.monotonic() > until:
                    has = scaling.counted(scaling.nodes())
                    raise ValueError(f"{error}; the cluster has {has} and added no others within {limit}") from None
                if demand is None:
                    on_wait(f"WARNING: waiting up to {limit} for the cluster to add nodes: {error}")
                    demand = placement_group([dict(each) for each in bundles])
            time.sleep(_POLL_S)
    finally:
        if demand is not None and ray.is_initialized():
            remove_placement_group(demand)
