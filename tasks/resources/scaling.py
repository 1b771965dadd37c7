"""Number and size of a job's workers: as asked for, or as the cluster allows."""

import contextlib
import dataclasses
import math
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from storage.terminal import count
from tasks.resources.devices import CPU_ADVICE
from tasks.resources.needs import ANY, Needs, Workers

Resources = Mapping[str, float]
"""Resources that Ray counts on one node: CPU, GPU and more."""

_CGROUP = Path("/sys/fs/cgroup")
"""Folder with the limits of a container."""
_ACCELERATOR = "accelerator_type:"
"""Start of the name of the resource by which Ray knows a node's kind of GPU."""
_MOST_CPUS_BESIDE_A_GPU = 4.0
"""CPUs that a worker with a GPU takes at most by default: its Python and two reading threads; the rest feed others."""
_ROWS_PER_GPU = 64
"""Rows of a batch below which another GPU does not pay by default: a step's launches then take longer than its work."""


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
    return [node for node in alive if node.get("CPU", 0) >= 1 or num_gpus(node)]


def num_gpus(*nodes: Resources) -> int:
    """Return the number of whole GPUs of `nodes`."""
    return sum(int(node.get("GPU", 0)) for node in nodes)


def node_name() -> str:
    """Return the name of this process's node: address and first digits of Ray's id; without Ray, its host name."""
    if sys.modules.get("ray"):
        import ray

        if ray.is_initialized():
            return f"{ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:8]})"
    return socket.gethostname()


def resolve(workers: Workers, *, threads: int | None, nodes: Sequence[Resources], needs: Needs = ANY) -> Scale:
    """Choose number and size of workers on `nodes`; if `workers` is None, one per GPU (64 rows each) or node.

    `threads` is the total of this machine, shared among the workers; None: as many per worker as CPUs. Raises
    `ValueError` if the nodes have too little; the message names what was asked for and what they have.
    """
    use_gpu = _takes_gpus(needs, nodes)
    places = _for_workers(nodes, needs, use_gpu)
    most = _most(nodes, places, needs, use_gpu)
    is_local = threads is not None
    fed = most if needs.batch_size is None else needs.batch_size // _ROWS_PER_GPU
    automatic = min(most, fed) if use_gpu else 1 if is_local else len(places)
    number = workers or max(1, automatic)
    here = "; for more, set RAY_ADDRESS to a cluster" if is_local else ""
    if use_gpu and number > (gpus := num_gpus(*places)):
        whose = " of this machine" if is_local else ""
        limit = f"at most the number of GPUs{whose}, {gpus}, got {number}{here}"
        raise ValueError(f"--workers must be {limit}{',' if here else ';'} or {CPU_ADVICE}")
    if number > most:
        each = f"with {count(needs.cpus, 'CPU')} each (cpus_per_worker) " if needs.cpus else ""
        where = "this machine" if is_local else f"a cluster with {count(cpus(nodes), 'CPU')}"
        why = here or "; one CPU of the cluster stays free"
        raise ValueError(f"--workers {each}must be at most {max(0, most)} on {where}, got {number}{why}")
    per_node = max(min(num_gpus(node), number) for node in places) if use_gpu else -(-number // len(places))
    share = min(max(1.0, (node.get("CPU", 0) - 1) // per_node) for node in places)  # one CPU of each node stays free
    cpus_each = needs.cpus or (_share_beside_gpus(places) if use_gpu else share)
    if threads is not None:
        cpus_each = needs.cpus or min(1.0, cpus_each)
    threads_each = max(1, int(cpus_each) if threads is None else threads // number)
    return Scale(workers=number, use_gpu=use_gpu, cpus=cpus_each, threads=threads_each, per_node=per_node)


def _takes_gpus(needs: Needs, nodes: Sequence[Resources]) -> bool:
    """Return True if workers take GPUs; raise `ValueError` if they need one that no node among `nodes` has."""
    if needs.device == "cpu":
        return False
    wanted = needs.accelerator_type
    if wanted and not any(node.get(f"{_ACCELERATOR}{wanted}") for node in nodes):
        kinds = sorted({name.removeprefix(_ACCELERATOR) for node in nodes for name in node if _ACCELERATOR in name})
        has = f"{', '.join(kinds)}: use one of these, or" if kinds else "no GPU of a known type:"
        raise ValueError(f"accelerator_type must be one that a node has, got {wanted!r}; the cluster has {has} omit it")
    if needs.device == "cuda" and not num_gpus(*nodes):
        raise ValueError(f"device=cuda needs a GPU, but this cluster has none; add one, or {CPU_ADVICE}")
    return num_gpus(*nodes) > 0


def _for_workers(nodes: Sequence[Resources], needs: Needs, use_gpu: bool) -> list[Resources]:
    """Return the nodes that a worker may run on; one with a GPU fits on no other node."""
    if not use_gpu:
        return [node for node in nodes if cpus([node]) >= 1]
    kind = f"{_ACCELERATOR}{needs.accelerator_type}"
    return [node for node in nodes if num_gpus(node) and (not needs.accelerator_type or node.get(kind))]


def _most(nodes: Sequence[Resources], places: Sequence[Resources], needs: Needs, use_gpu: bool) -> int:
    """Return how many workers fit on `places`: none spans nodes, and a CPU of the cluster stays free for data tasks.

    Workers with GPUs share the other CPUs, however few there are, unless each needs a number of its own.
    """
    if use_gpu and not needs.cpus:
        return num_gpus(*places) if cpus(nodes) >= 1 else 0
    each = needs.cpus or 1
    on_nodes = [int(cpus([node]) // each) for node in places]
    if use_gpu:
        on_nodes = [min(number, num_gpus(node)) for number, node in zip(on_nodes, places, strict=True)]
    return min(sum(on_nodes), int((cpus(nodes) - 1) // each))


def bundles(workers: Workers, needs: Needs, nodes: Sequence[Resources]) -> list[Resources]:
    """Return what each worker requires at least, and a CPU for data tasks, as Ray takes requests for resources.

    Workers take GPUs, as in `resolve`, also because some of `nodes` have them.
    """
    kind = {f"{_ACCELERATOR}{needs.accelerator_type}": 0.001} if needs.accelerator_type else {}
    use_gpu = needs.device == "cuda" or kind or (needs.device == "auto" and num_gpus(*nodes))
    gpu = {"GPU": 1.0} if use_gpu else {}
    each: Resources = gpu | kind | ({"CPU": needs.cpus or 1.0} if needs.cpus or not gpu else {})
    return [each] * (workers or 1) + [{"CPU": 1.0}]


def resolve_growing(
    workers: Workers, *, threads: int | None, needs: Needs, limit_s: float, on_wait: Callable[[str], None]
) -> Scale:
    """Choose workers as `resolve` does on the connected Ray's nodes; let a cluster add those that are missing.

    `on_wait` is called with what is missing, if there is a wait. Raises `ValueError` if they are too few after
    `limit_s`, or at once on a local Ray (with `threads`), which adds no nodes.
    """
    here = nodes()
    try:
        return resolve(workers, threads=threads, nodes=here, needs=needs)
    except ValueError as error:
        if threads is not None:
            raise
        missing = str(error)
    await_nodes(bundles(workers, needs, here), missing, limit_s=limit_s, on_wait=on_wait)
    return resolve(workers, threads=None, nodes=nodes(), needs=needs)


def await_nodes(asked: Sequence[Resources], missing: str, *, limit_s: float, on_wait: Callable[[str], None]) -> None:
    """Wait until Ray can reserve all that is `asked`; raise `ValueError` with what is `missing` after `limit_s`."""
    import ray

    limit = f"{limit_s / 60:.3g} min"
    on_wait(f"WARNING: waiting up to {limit} for the cluster to add nodes: {missing}")
    group = ray.util.placement_group([dict(bundle) for bundle in asked])
    try:
        ray.get(group.ready(), timeout=limit_s)
    except ray.exceptions.GetTimeoutError:
        has = counted(nodes())
        raise ValueError(f"{missing}; the cluster has {has} and added no others within {limit}") from None
    finally:
        if ray.is_initialized():
            ray.util.remove_placement_group(group)


def counted(nodes: Sequence[Resources]) -> str:
    """Return the numbers of `nodes`, their CPUs and their GPUs in words."""
    numbers = {"node": len(nodes), "CPU": cpus(nodes), "GPU": num_gpus(*nodes)}
    return ", ".join(count(number, noun) for noun, number in numbers.items())


def cpus(nodes: Sequence[Resources]) -> float:
    return sum(node.get("CPU", 0) for node in nodes)


def _share_beside_gpus(nodes: Sequence[Resources]) -> float:
    """Return the CPUs of each worker with a GPU: its share among all GPUs of its node, at most 4, perhaps a fraction.

    A worker that took the CPUs of idle GPUs as well would block these GPUs, and leave none for Ray Data.
    """
    shares = (max(0.0, node.get("CPU", 0) - 1) / num_gpus(node) for node in nodes)
    share = min(_MOST_CPUS_BESIDE_A_GPU, *shares)
    return float(math.floor(share) if share >= 1 else math.floor(share * 100) / 100)


def cores_here(cgroup: Path = _CGROUP) -> int:
    """Return the cores of this machine that this process may use, at most a container's limit, rounded up."""
    cores = len(os.sched_getaffinity(0))
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # of version 2, and of version 1
        with contextlib.suppress(OSError, ValueError):  # another version; or no limit, which is `max` or -1
            quota_us, period_us = map(int, " ".join((cgroup / name).read_text() for name in names).split())
            cores = min(cores, math.ceil(quota_us / period_us)) if quota_us > 0 else cores
    return cores


def memory_here(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes of memory that are available on this machine, at most a container's limit."""
    available = 1024 * int(meminfo.read_text().partition("MemAvailable:")[2].split()[0])
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of version 2, and of version 1
        with contextlib.suppress(OSError, ValueError):  # another version; or no limit, which is `max`
            available = min(available, int((cgroup / name).read_text()))
    return available


def threads_here(most: int, *, sharing: int) -> int:
    """Return the threads of one of `sharing` workers on this machine: `most`, or fewer if its share of cores is less.

    A node may count more CPUs than it has cores, and more threads than cores make a step many times slower (measured
    on two cores with four threads: 5 s instead of 0.2 s, since waiting OpenMP threads keep the cores busy).
    """
    return max(1, min(most, cores_here() // sharing))
