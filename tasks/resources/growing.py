"""Clusters that grow: Ray is asked for what a stage needs, and adds nodes within a limit."""

from collections.abc import Callable, Sequence

import ray
from ray.exceptions import GetTimeoutError
from ray.util import placement_group, remove_placement_group

from tasks.resources import scaling
from tasks.resources.scaling import Needs, Resources, Scale, Workers


def resolve(
    workers: Workers, *, threads: int | None, needs: Needs, limit_s: float, on_wait: Callable[[str], None]
) -> Scale:
    """Choose number and size of workers on the connected Ray's nodes; let a cluster add those that are missing.

    Args:
        workers: As asked for.
        threads: Total of this machine for a local Ray, which adds no nodes; None on a cluster.
        needs: Resources that each worker requires.
        limit_s: Longest wait, in seconds.
        on_wait: Called with what is missing, if there is a wait.

    Raises:
        ValueError: They are too few after `limit_s`; the message names what was asked for and what the cluster has.
    """
    nodes = scaling.nodes()
    try:
        return scaling.resolve(workers, threads=threads, nodes=nodes, needs=needs)
    except ValueError as error:
        if threads is not None:
            raise
        missing = str(error)
    await_nodes(scaling.bundles(workers, needs, nodes), missing, limit_s=limit_s, on_wait=on_wait)
    return scaling.resolve(workers, threads=None, nodes=scaling.nodes(), needs=needs)


def await_nodes(bundles: Sequence[Resources], missing: str, *, limit_s: float, on_wait: Callable[[str], None]) -> None:
    """Wait until Ray can reserve all `bundles` at once; raise `ValueError` with what is `missing` after `limit_s`."""
    limit = f"{limit_s / 60:.3g} min"
    on_wait(f"WARNING: waiting up to {limit} for the cluster to add nodes: {missing}")
    group = placement_group([dict(bundle) for bundle in bundles])
    try:
        ray.get(group.ready(), timeout=limit_s)
    except GetTimeoutError:
        has = scaling.counted(scaling.nodes())
        raise ValueError(f"{missing}; the cluster has {has} and added no others within {limit}") from None
    finally:
        if ray.is_initialized():
            remove_placement_group(group)
