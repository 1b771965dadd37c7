"""How many workers a job gets, and of what kind: as asked, or what the cluster has."""

import dataclasses

import ray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """What one job takes of the cluster."""

    workers: int
    """Processes that compute."""
    use_gpu: bool
    """Whether each takes a whole GPU."""
    cpus: int
    """CPUs, as Ray counts them, that each takes."""
    threads: int
    """Threads each computes with."""


def resolve(workers: int | None, *, threads: int | None) -> Scale:
    """What `workers` (none: as many as there are GPUs, else one per node) means on the cluster that Ray runs on.

    `threads` is all that this machine has, shared among the workers; none: each has as many as CPUs. Raises
    `ValueError` naming what was asked and what there is when the cluster can never give it.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    gpus, cpus = (int(sum(node.get(kind, 0) for node in nodes)) for kind in ("GPU", "CPU"))
    number = workers or gpus or (1 if threads else len(nodes))
    if threads:
        cpus_each, threads_each = 1, max(1, threads // number)
    else:
        # One CPU of each node stays free: data tasks that get none would wait for ever.
        free = int(min(node["CPU"] for node in nodes)) - 1 if nodes else 0
        cpus_each = threads_each = max(1, free // -(-number // max(1, len(nodes))))
    if gpus and number > gpus:
        raise ValueError(f"--workers must be at most the number of GPUs, {gpus}, got {number}")
    if number * cpus_each >= cpus:
        raise ValueError(
            f"--workers must be at most {max(0, cpus - 1)} on a cluster with {cpus} CPUs, got {number}; one stays free"
        )
    return Scale(workers=number, use_gpu=gpus > 0, cpus=cpus_each, threads=threads_each)
