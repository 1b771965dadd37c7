"""Named points at which the fault suite strikes from inside; a comparison with none while it does not.

The plan of a strike is a JSON object in `PIPELINE_STRIKE`, which every process of a run inherits: `point`, `action`,
`at` (a part of the place that the point names), `rank`, `skip` (how many matches a process lets go by first) and `once`
(a file: whoever creates it strikes, so that of all processes and attempts one does).
"""

import errno
import json
import os
import signal
import time
from typing import Any

_PLAN = os.environ.get("PIPELINE_STRIKE")

rank: int | None = None
"""Of the training worker that this process is, if it is one."""
_passed = 0


def reached(point: str, at: str = "") -> str | None:
    """Say that this process is at `point`, at work on `at`; an action that is the caller's to carry out, if any."""
    return None if _PLAN is None else _reached(json.loads(_PLAN), point, at)


def _reached(plan: dict[str, Any], point: str, at: str) -> str | None:
    global _passed
    if plan["point"] != point or plan["at"] not in at or plan.get("rank") not in (None, rank):
        return None
    _passed += 1
    if _passed <= plan.get("skip", 0):
        return None
    try:
        with open(plan["once"], "x") as once:
            json.dump({"point": point, "at": at, "action": plan["action"], "pid": os.getpid(), "s": time.time()}, once)
    except FileExistsError:
        return None
    return _strike(plan["action"], at)


def _strike(action: str, at: str) -> str | None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
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
