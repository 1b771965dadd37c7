"""How many workers a job gets, and of what kind: as asked, or what the cluster has."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

Resources = Mapping[str, float]
"""What Ray counts on one node: CPU, GPU and more."""
Workers = int | str | None
"""As asked: a number (0: without Ray), `MIN:MAX` for elastic ones, or none for auto."""


READING_THREADS = 2
"""With how many threads a training worker reads ahead."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """What each worker is asked to have."""

    accelerator_type: str = ""
    """Kind of GPU, as Ray calls it; empty: any, or none."""
    cpus: float = 0.0
    """CPUs, as Ray counts them; 0: its share of a node."""


ANY = Needs()
"""Whatever there is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """What one job takes of the cluster."""

    workers: int
    """Processes that compute."""
    use_gpu: bool
    """Whether each takes a whole GPU."""
    cpus: float
    """CPUs, as Ray counts them, that each takes."""
    threads: int
    """Threads each computes with at most."""
    per_node: int
    """Workers that share a machine, at most, when they are spread evenly."""


def nodes() -> list[Resources]:
    """The nodes of the cluster that work can be put on."""
    import ray  # the rest of this is asked before there is any

    return usable([node["Resources"] for node in ray.nodes() if node["Alive"]])


def usable(alive: Sequence[Resources]) -> list[Resources]:
    """The nodes that work can be put on, of all that are alive."""
    return [node for node in alive if node.get("CPU", 0) >= 1]


def limits(workers: Workers) -> tuple[int, int] | None:
    """The fewest and the most of elastic workers, none for any others; raises `ValueError` for limits that are none."""
    if not isinstance(workers, str) or ":" not in workers:
        return None
    fewest, _, most = workers.partition(":")
    if not (fewest.isdecimal() and most.isdecimal() and 1 <= int(fewest) < int(most)):
        raise ValueError(f"--workers must be MIN:MAX with 1 <= MIN < MAX, got {workers!r}; or give one number")
    return int(fewest), int(most)


def resolve(
    workers: Workers,
    *,
    threads: int | None,
    nodes: Sequence[Resources],
    needs: Needs = ANY,
) -> Scale:
    """What `workers` (none: as many as there are GPUs, else one per node) means on the cluster of `nodes`.

    Of elastic workers as many as fit. `threads` is all that this machine has, shared among the workers; none: each has
    as many as CPUs. Raises `ValueError` naming what was asked and what there is when the cluster can never give it.
    """
    if needs.accelerator_type:
        nodes = _with_accelerator(nodes, needs.accelerator_type)
    if any(node.get("GPU", 0) >= 1 for node in nodes):
        nodes = [node for node in nodes if node.get("GPU", 0) >= 1]  # a worker with a GPU fits nowhere else
    gpus, cpus = (int(sum(node.get(kind, 0) for node in nodes)) for kind in ("GPU", "CPU"))
    most = int((cpus - 1) // (needs.cpus or 1))
    if needs.cpus:  # a worker is never spread over nodes
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
            "one stays free"
        )
    per_node = max(min(int(node["GPU"]), number) for node in nodes) if gpus else -(-number // len(nodes))
    cpus_each: float = needs.cpus or 1
    if threads is None:
        # One CPU of each node stays free: data tasks that get none would wait for ever.
        cpus_each = needs.cpus or max(1, min(_share(node, number, per_node) for node in nodes))
        threads_each = max(1, int(cpus_each))
    else:
        threads_each = max(1, threads // number)
    return Scale(workers=number, use_gpu=gpus > 0, cpus=cpus_each, threads=threads_each, per_node=per_node)


def has_idle_nodes(given: Scale, nodes: Sequence[Resources]) -> bool:
    """Whether GPUs train, and nodes without any have more CPUs to read with than the workers would use themselves."""
    idle = sum(node.get("CPU", 0) for node in nodes if node.get("GPU", 0) < 1)
    return given.use_gpu and idle > given.workers * READING_THREADS


def _with_accelerator(nodes: Sequence[Resources], wanted: str) -> list[Resources]:
    mark = "accelerator_type:"
    found = [node for node in nodes if node.get(f"{mark}{wanted}")]
    if not found:
        there = sorted({name.removeprefix(mark) for node in nodes for name in node if name.startswith(mark)})
        has = f"has {', '.join(there)}" if there else "has none"
        raise ValueError(f"accelerator_type must be one that a node has, got {wanted!r}; this Ray {has}")
    return found


def _share(node: Resources, number: int, per_node: int) -> int:
    """CPUs of `node` for each of the workers that may come to lie on it."""
    sharing = min(int(node["GPU"]), number) if node.get("GPU", 0) >= 1 else per_node
    return (int(node["CPU"]) - 1) // sharing


def threads_here(most: int, *, sharing: int) -> int:
    """Threads for one of `sharing` workers on this machine: `most`, or its share of the cores if that is less.

    A node may count more CPUs than it has cores, and more threads than cores make a step many times slower (seen on
    two cores with four threads: 5 s instead of 0.2 s, since OpenMP's threads wait for each other busily).
    """
    return max(1, min(most, len(os.sched_getaffinity(0)) // sharing))
