"""Ways to kill a flow, and checks that the next one resumed."""

import signal
from typing import Any

from tests.faults.case import Case, Failed
from tests.faults.history import step_of
from tests.runs import Run


def kill_flow(case: Case, run: Run) -> None:
    case.send_signal(run.process.pid, signal.SIGKILL, what="flow")
    case.wait(run)
    case.until(lambda: not run.processes(), "what the flow had started ended with it")


def check_resumed_at_epoch_2(case: Case, result: dict[str, Any]) -> dict[str, Any]:
    """`result`, once it is known that no process trained epoch 1 again."""
    events = list(case.history.events())
    struck = next(event["s"] for event in events if "struck" in event)
    if any(step_of(1)(event) and event["started"] > struck for event in events):
        raise Failed("training began again instead of resuming")
    return result
