"""Named points at which the fault suite strikes from inside; a comparison with none while there is no suite.

`PIPELINE_STRIKE` holds a JSON object that every process of a run inherits: `history`, a file to which each process adds
a line for each point it reaches, and `strike`, none or an object with `point`, `at` (a part of the place that the point
names), `rank`, `skip` (how many matches a process lets go by first), `action` and `once` (a file: whoever creates it
strikes, so that of all processes and attempts one does).
"""

import errno
import json
import os
import signal
import time
from typing import Any

_PLAN: dict[str, Any] | None = json.loads(os.environ["PIPELINE_STRIKE"]) if "PIPELINE_STRIKE" in os.environ else None
_STARTED = time.time()

rank: int | None = None
"""Of the training worker that this process is, if it is one."""
_passed = 0


def reached(point: str, at: str = "") -> str | None:
    """Say that this process is at `point`, at work on `at`; an action that is the caller's to carry out, if any."""
    return None if _PLAN is None else _reached(_PLAN, point, at)


def _reached(plan: dict[str, Any], point: str, at: str) -> str | None:
    about = {"point": point, "at": at, "rank": rank, "pid": os.getpid(), "started": _STARTED}
    _note(plan, about)
    strike = plan["strike"]
    if strike is None or not _is_due(strike, point, at):
        return None
    try:
        open(strike["once"], "x").close()
    except FileExistsError:
        return None
    _note(plan, about | {"struck": strike["action"]})
    return _carry_out(strike["action"], at)


def _is_due(strike: dict[str, Any], point: str, at: str) -> bool:
    global _passed
    if strike["point"] != point or strike["at"] not in at or strike["rank"] not in (None, rank):
        return False
    _passed += 1
    return _passed > int(strike["skip"])


def _carry_out(action: str, at: str) -> str | None:
    if action in ("kill", "freeze"):
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
    elif action == "exit":
        os._exit(0)
    elif action == "hang":
        while True:
            time.sleep(3600)
    elif action == "raise":
        raise RuntimeError(f"struck at {at}")
    elif action == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), at)
    return action


def _note(plan: dict[str, Any], event: dict[str, Any]) -> None:
    """Add a line to the history; the kernel appends it as a whole."""
    with open(plan["history"], "ab", buffering=0) as history:
        history.write(json.dumps(event | {"s": time.time()}).encode() + b"\n")
