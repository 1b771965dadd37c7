"""Devices: which one a process computes on, and why torch cannot use a GPU that is there.

`python -m tasks.learning.devices` prints that reason; nothing if torch can use the GPUs of this machine.
"""

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from storage.error_policy import Permanent

if TYPE_CHECKING:
    import torch

WAY_OUT = "use --set device=cpu to compute on CPUs"
"""Next step of every message about a GPU that cannot be used."""
_LIMIT_S = 25
"""Seconds that a child process may take to ask torch; a node must answer the preflight within 30 s."""


class UnusableGpu(Permanent):
    """A process holds a GPU that torch cannot use; the message names the node, the reason and the next step."""


def choose(asked: str, *, where: str) -> "torch.device":
    """Return the device to compute on; never fall back to the CPU if a GPU was requested.

    Args:
        asked: `cuda`, also for a process that a GPU is reserved for, `cpu`, or `auto`: a GPU if torch finds one.
        where: Name of the node.

    Raises:
        UnusableGpu: torch cannot use the GPU.
    """
    import torch

    if asked == "cpu":
        return torch.device("cpu")
    reason = trouble()
    if reason is None:
        return torch.device("cuda", 0)
    if asked == "cuda":
        raise UnusableGpu(f"torch cannot use a GPU on node {where}: {reason}; or {WAY_OUT}")
    return torch.device("cpu")


def trouble() -> str | None:
    """Return why torch cannot use a GPU in this process, and what to do; None if it can."""
    import torch

    if torch.cuda.is_available():
        return None
    build = f"torch {torch.__version__}"
    if torch.version.cuda is None and torch.version.hip is None:
        return f"{build} is a build for CPUs only; install requirements.lock there"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        says = " ".join(str(error).split()).partition(". ")[0]
        advice = "update NVIDIA's driver there" if "too old" in says else "check the driver there (nvidia-smi)"
        return f"{build} for CUDA {torch.version.cuda} says: {says}; {advice}"
    return f"{build} finds no GPU; check CUDA_VISIBLE_DEVICES there"


def trouble_in_child(*, hidden_by_ray: bool = False) -> str | None:
    """Return what `trouble` says in a child process, so that this one neither imports torch nor loads CUDA.

    `hidden_by_ray` is for a task without GPUs, from which Ray hides those of its node.
    """
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if hidden_by_ray:
        env.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tasks.learning.devices"], env=env, capture_output=True, text=True, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"torch did not find the GPUs within {_LIMIT_S} s; check the driver there (nvidia-smi)"
    if done.returncode:
        return f"torch cannot be used: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
    return done.stdout.strip() or None


if __name__ == "__main__":
    print(trouble() or "", end="")
