"""Number and size of a job's workers: as asked for, or as the cluster allows."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

from tasks.learning.recipes import Recipe

Resources = Mapping[str, float]
"""Resources that Ray counts on one node: CPU, GPU and more."""
Workers = int | str | None
"""Workers as asked for: a number (0: without Ray), `MIN:MAX` for elastic ones, None for auto."""

READING_THREADS = 2
"""Threads with which a training worker reads ahead."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """Resources that each worker requires."""

    accelerator_type: str = ""
    """Kind of GPU by Ray's name for it; empty: any, or none."""
    cpus: float = 0.0
    """CPUs as Ray counts them; 0: an equal share of a node."""


ANY = Needs()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """Resources that one job takes of the cluster."""

    workers: int
    """Number of processes that compute."""
    use_gpu: bool
    """True if each worker takes a whole GPU."""
    cpus: float
    """CPUs that each worker takes, as Ray counts them."""
    threads: int
    """Most threads that each worker computes with."""
    per_node: int
    """Most workers on one machine, when they are spread evenly."""


def nodes() -> list[Resources]:
    """Return the nodes of the connected cluster that can take work."""
    import ray  # the other functions here are called before there is a Ray

    return usable([node["Resources"] for node in ray.nodes() if node["Alive"]])


def usable(alive: Sequence[Resources]) -> list[Resources]:
    """Return the nodes among `alive` that can take work."""
    return [node for node in alive if node.get("CPU", 0) >= 1]


def limits(workers: Workers) -> tuple[int, int] | None:
    """Return the fewest and the most of elastic workers, None for any others; raise `ValueError` for wrong limits."""
    if not isinstance(workers, str) or ":" not in workers:
        return None
    fewest, _, most = workers.partition(":")
    if not (fewest.isdecimal() and most.isdecimal() and 1 <= int(fewest) < int(most)):
        raise ValueError(f"--workers must be MIN:MAX with 1 <= MIN < MAX, or one number, got {workers!r}")
    return int(fewest), int(most)


def resolve(workers: Workers, *, threads: int | None, nodes: Sequence[Resources], needs: Needs = ANY) -> Scale:
    """Choose number and size of workers on `nodes`; if `workers` is None, one per GPU, else one per node.

    Of elastic workers, as many as fit. `threads` is the total of this machine, shared among the workers; None: as many
    per worker as CPUs. Raises `ValueError`, with what was asked and what exists, if the cluster can never give it.
    """
    if needs.accelerator_type:
        nodes = _with_accelerator(nodes, needs.accelerator_type)
    if any(node.get("GPU", 0) >= 1 for node in nodes):
        nodes = [node for node in nodes if node.get("GPU", 0) >= 1]  # a worker with a GPU fits on no other node
    gpus, cpus = (int(sum(node.get(kind, 0) for node in nodes)) for kind in ("GPU", "CPU"))
    most = int((cpus - 1) // (needs.cpus or 1))
    if needs.cpus:  # a worker never spans nodes
        most = min(most, sum(int(node.get("CPU", 0) // needs.cpus) for node in nodes))
    elastic = limits(workers)
    if elastic:
        number = max(elastic[0], min(elastic[1], gpus or most))
    else:
        number = int(workers or 0) or gpus or (1 if threads else len(nodes))
    if gpus and number > gpus:
        raise ValueError(f"--workers must be at most the number of GPUs, {gpus}, got {workers or number}")
    if number > most:
        each = f"with {needs.cpus:g} CPUs each (cpus_per_worker) " if needs.cpus else ""
        raise ValueError(
            f"--workers {each}must be at most {max(0, most)} on a cluster with {cpus} CPUs, got {workers or number}; "
            "one CPU per node stays free"
        )
    per_node = max(min(int(node["GPU"]), number) for node in nodes) if gpus else -(-number // len(nodes))
    cpus_each: float = needs.cpus or 1
    if threads is None:
        # One CPU of each node stays free, else data tasks would wait for ever.
        cpus_each = needs.cpus or max(1, min(_share(node, number, per_node) for node in nodes))
        threads_each = max(1, int(cpus_each))
    else:
        threads_each = max(1, threads // number)
    return Scale(workers=number, use_gpu=gpus > 0, cpus=cpus_each, threads=threads_each, per_node=per_node)


def has_idle_nodes(given: Scale, nodes: Sequence[Resources]) -> bool:
    """Return True if GPUs train and nodes without GPUs have more CPUs for reading than the workers would use."""
    idle = sum(node.get("CPU", 0) for node in nodes if node.get("GPU", 0) < 1)
    return given.use_gpu and idle > given.workers * READING_THREADS


def _with_accelerator(nodes: Sequence[Resources], wanted: str) -> list[Resources]:
    mark = "accelerator_type:"
    found = [node for node in nodes if node.get(f"{mark}{wanted}")]
    if not found:
        there = sorted({name.removeprefix(mark) for node in nodes for name in node if name.startswith(mark)})
        has = f"has {', '.join(there)}" if there else "has no GPU with a known type"
        raise ValueError(f"accelerator_type must be one that a node has, got {wanted!r}; this Ray {has}")
    return found


def _share(node: Resources, number: int, per_node: int) -> int:
    """Return the CPUs of `node` for each worker that may share it."""
    sharing = min(int(node["GPU"]), number) if node.get("GPU", 0) >= 1 else per_node
    return (int(node["CPU"]) - 1) // sharing


def threads_here(most: int, *, sharing: int) -> int:
    """Return the threads of one of `sharing` workers on this machine: `most`, or fewer if its share of cores is less.

    A node may count more CPUs than it has cores, and more threads than cores make a step many times slower (measured
    on two cores with four threads: 5 s instead of 0.2 s, since waiting OpenMP threads keep the cores busy).
    """
    return max(1, min(most, len(os.sched_getaffinity(0)) // sharing))


def needs_of(recipe: Recipe) -> Needs:
    """Return the resources that each worker requires."""
    return Needs(accelerator_type=recipe.accelerator_type, cpus=recipe.cpus_per_worker)
