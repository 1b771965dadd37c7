"""Devices: which one a process computes on, and why torch cannot use a GPU that is there.

A GPU that is not there is refused in `scaling.py` (cluster) and `capacity.py` (this machine).

`python -m tasks.resources.devices` prints that reason; nothing if torch can use the GPUs of this machine.
"""

import functools
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from storage.error_policy import Permanent

if TYPE_CHECKING:
    import torch

CPU_ADVICE = "use --set device=cpu to compute on CPUs"
"""Next step of every message about a GPU that cannot be used."""
_LIMIT_S = 25
"""Seconds that a child process may take to ask torch."""


class UnusableGpu(Permanent):
    """A process holds a GPU that torch cannot use; the message names the node, the reason and the next step."""


def choose(asked: str, *, where: str, number: int = 0) -> "torch.device":
    """Return the device to compute on; raises `UnusableGpu` if torch cannot use the GPU.

    Args:
        asked: `cuda` (also if Ray reserved a GPU for this process), `cpu`, or `auto`: a GPU if torch finds one.
        where: Name of the node.
        number: Index of the GPU to use among the visible ones; a sum is computed on it as a test.
    """
    import torch

    if asked == "cpu":
        return torch.device("cpu")
    reason = trouble(number)
    if reason is None:
        return torch.device("cuda", number)
    if asked == "cuda" or torch.cuda.is_available():
        raise UnusableGpu(f"torch cannot use a GPU on node {where}: {reason}; or {CPU_ADVICE}")
    return torch.device("cpu")


def can_compile() -> bool:
    """Return whether torch.compile finds what it needs for GPUs: a C compiler and Python's headers."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    return any(map(shutil.which, compilers)) and Path(sysconfig.get_path("include"), "Python.h").exists()


def check_compiler(*, where: str) -> None:
    """Raise `ValueError` unless torch.compile finds the C++ compiler that it needs for CPUs."""
    command = shlex.split(os.environ.get("CXX") or "g++")[0]
    if shutil.which(command) is None:
        raise ValueError(
            f"compile=on needs a C++ compiler, but there is no {command!r} on {where}; install g++, or use --set "
            "compile=off"
        )


def trouble(number: int | None = None) -> str | None:
    """Return why torch cannot use a GPU in this process, and what to do; None if it can.

    Args:
        number: Compute a sum on this GPU, which creates a context of some hundred MB on it. None: only ask whether
            torch finds GPUs, without touching them, since other processes may hold them.
    """
    import torch

    try:
        if number is None:
            torch.cuda.init()
        else:
            torch.ones(2, device=torch.device("cuda", number)).sum().item()
    except (RuntimeError, AssertionError) as error:
        says = " ".join(str(error).split("\nSearch for ")[0].split()).partition(". ")[0]
        advice = "check CUDA_VISIBLE_DEVICES and nvidia-smi there, and that it is a build for these GPUs"
        return f"torch {torch.__version__} says: {says}; {advice}"
    return None


@functools.cache
def trouble_in_child() -> str | None:
    """Return what `trouble` says in a child process, so that this one neither imports torch nor loads CUDA."""
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, sys.path)]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tasks.resources.devices"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return (
            f"torch did not find the GPUs within {_LIMIT_S} s; if torch was just installed there, run again, "
            "else check the driver there (nvidia-smi)"
        )
    if done.returncode:
        return f"torch cannot be used: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
    return done.stdout.strip() or None


if __name__ == "__main__":
    print(trouble() or "", end="")
