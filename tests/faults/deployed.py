"""A run of a deployment whose flow and worker are killed together: nobody is left who could say so."""

import signal
from typing import TYPE_CHECKING, Any

from tests.faults.history import checkpoint_of
from tests.operated import Operated, webhook

if TYPE_CHECKING:
    from tests.faults.case import Case


def kill_flow_and_runner(case: "Case") -> None:
    """Kill both in training; the run is marked Crashed, and the deployment's next run goes on to its end."""
    from tests.faults.case import Failed

    parameters: dict[str, Any] = {
        "storage": case.root,
        "data": case.root.child(f"datasets/raw/{case.lab.golden.raw}"),
        "workers": 2,
        "settings": case.lab.settings(),
    }
    folder = case.folder / "operated"
    folder.mkdir(parents=True, exist_ok=True)
    with webhook() as (address, _):
        operated = Operated(folder, webhook=address)
        operated.env |= {"PIPELINE_STRIKE": case.lab.plan(None)} | case.lab.environment(case.root)
        try:
            operated.deploy()
            operated.start_worker()
            struck = operated.start("mnist/smoke", **parameters)
            case.until(lambda: case.history.has(checkpoint_of(1)), "epoch 1 is safe")
            engine = operated.engine(struck)
            operated.kill_worker()
            case.strike(engine, signal.SIGKILL, what="flow, after its worker")
            if operated.await_end(struck, limit_s=240) != ["Crashed"]:
                raise Failed("the run was not seen to have ended")
            case.until(lambda: not operated.processes(struck), "what the flow had started ended with it")
            operated.start_worker()
            if operated.await_end(operated.start("mnist/smoke", **parameters)) != ["Completed"]:
                raise Failed("the deployment's next run did not complete")
        finally:
            operated.end()
