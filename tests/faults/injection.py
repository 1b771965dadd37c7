"""Code of the fault suite inside the processes of a run: record each failpoint, and inject the fault at one of them.

`inside/sitecustomize.py` installs it in every Python process that inherits the variables of `environment`.
"""

import errno
import json
import os
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from storage import failpoints

NAME = "PIPELINE_STRIKE"
CHECKOUT = Path(__file__).resolve().parents[2]
_STARTED = time.time()

_passed = 0


def install() -> None:
    """Have this process record failpoints and inject the fault as `PIPELINE_STRIKE` says, if it is set."""
    if NAME in os.environ:
        failpoints.handler = partial(_reached, json.loads(os.environ[NAME]))


def fault(
    point: str, at: str = "", *, once: Path, action: str = "kill", rank: int | None = None, skip: int = 0
) -> dict[str, Any]:
    """What to do at a failpoint.

    Args:
        point: Name of the failpoint.
        at: A part of the place.
        once: A file: only the process that creates it injects the fault.
        action: kill, freeze, hang, raise or full (disk).
        rank: Of the training worker; any if None.
        skip: How many matches a process lets go by first.
    """
    return {"point": point, "at": at, "rank": rank, "skip": skip, "action": action, "once": str(once)}


def environment(history: Path, fault: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Variables with which every process of a run adds each failpoint to `history`, and injects `fault`."""
    path = [str(CHECKOUT / "tests" / "faults" / "inside"), str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
    plan = {"history": str(history), "strike": fault}
    return {NAME: json.dumps(plan), "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _reached(plan: dict[str, Any], point: str, at: str) -> None:
    event = {"point": point, "at": at, "rank": failpoints.rank, "pid": os.getpid(), "started": _STARTED}
    _note(plan, event)
    fault = plan["strike"]
    if fault is None or not _is_due(fault, point, at):
        return
    try:
        open(fault["once"], "x").close()
    except FileExistsError:
        return
    _note(plan, event | {"struck": fault["action"]})
    _carry_out(fault["action"], at)


def _is_due(fault: dict[str, Any], point: str, at: str) -> bool:
    global _passed
    if fault["point"] != point or fault["at"] not in at or fault["rank"] not in (None, failpoints.rank):
        return False
    _passed += 1
    return _passed > int(fault["skip"])


def _carry_out(action: str, at: str) -> None:
    if action in ("kill", "freeze"):
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
    elif action == "hang":
        while True:
            time.sleep(3600)
    elif action == "raise":
        raise RuntimeError(f"struck at {at}")
    elif action == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), at)
    else:
        raise AssertionError(action)


def _note(plan: dict[str, Any], event: dict[str, Any]) -> None:
    """Add a line to the history; the kernel appends it as a whole."""
    with open(plan["history"], "ab", buffering=0) as history:
        history.write(json.dumps(event | {"s": time.time()}).encode() + b"\n")
