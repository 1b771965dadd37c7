"""Share of the machine that a run without a cluster uses: its cores and its GPUs."""

import ctypes.util
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.resources.needs import Workers
from tasks.resources.scaling import cores_here

_Glob = tuple[str, str]
_chosen: int | None = None
"""Number of cores that runs of this process use without a cluster; None: all cores available to it."""
_DEVICES = ("/dev", "nvidia[0-9]*")
"""Folder and names of the GPUs that a process may open; a container may have fewer than the machine."""
_HINTS = (("/proc/driver/nvidia/gpus", "*"), ("/dev", "dxg"))
"""Where GPUs appear before they have device files (the driver is loaded but unused), and under WSL. They count only if
CUDA's library is installed: a container without GPUs also shows the host's driver, and WSL's device may be a GPU of
another maker."""


def choose(cores: int | None) -> None:
    """Set the number of cores for the runs of this process, which tell their jobs; None: all."""
    global _chosen
    _chosen = cores


def cores_asked(workers: Workers) -> int:
    """Return the requested number of cores, 0 for all; it sets the number of threads, which affects the weights."""
    if _chosen is None:
        return 0
    most = cores_here()
    if not 1 <= _chosen <= most:
        raise ValueError(f"--cores must be 1 to {most} on this machine, got {_chosen}")
    if os.environ.get("RAY_ADDRESS") and workers != 0:
        raise ValueError("--cores cannot be used with RAY_ADDRESS; on a cluster set cpus_per_worker")
    return _chosen


def cores() -> int:
    return cores_asked(0) or cores_here()


def gpus(
    env: Mapping[str, str] = os.environ, *, devices: _Glob = _DEVICES, hints: Sequence[_Glob] = _HINTS
) -> list[str]:
    """Return the available GPUs by number or as in CUDA_VISIBLE_DEVICES; loading CUDA to ask it would take seconds."""
    there = _count(*devices)
    if not there and (hinted := next(filter(None, itertools.starmap(_count, hints)), 0)):
        there = hinted if ctypes.util.find_library("cuda") else 0
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not there:
        return [str(number) for number in range(there)]
    names = [name.strip() for name in visible.split(",")]
    return [name for name in names if name and not name.startswith("-") and name != "NoDevFiles"][:there]


def _count(folder: str, names: str) -> int:
    return len(list(Path(folder).glob(names)))


def device(asked: str) -> str:
    """Return the device of work in this process; `auto` must use the GPUs of this machine, if there are any."""
    return "cuda" if asked == "auto" and gpus() else asked
