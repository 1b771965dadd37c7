"""A run of a deployment whose flow, and possibly its worker, is killed: it is restarted automatically."""

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.faults.history import checkpoint_of
from tests.operated import Operated, webhook

if TYPE_CHECKING:
    from tests.faults.case import Case


def kill_flow(case: "Case", *, with_runner: bool) -> None:
    """Kill the flow in training, and its worker before it if asked; the same run resumes and completes."""
    from tests.faults.case import Failed

    parameters: dict[str, Any] = {
        "storage": case.root,
        "data": case.root.child(f"datasets/raw/{case.lab.golden.raw}"),
        "workers": 2,
        "settings": case.lab.settings(),
    }
    with _operated(case) as operated:
        operated.start_worker()
        run = operated.start("mnist/smoke", **parameters)
        case.until(lambda: case.history.has(checkpoint_of(1)), "epoch 1 is safe")
        engine = operated.engine(run)
        if with_runner:
            operated.kill_worker()
        case.strike(engine, signal.SIGKILL, what="flow, after its worker" if with_runner else "flow")
        case.until(lambda: operated.state(run)["name"] == "Crashed", "the run was seen to have crashed")
        case.until(lambda: not operated.processes(run), "what the flow had started ended with it")
        if with_runner:
            operated.start_worker()
        case.until(lambda: operated.starts(run) == 2, "the run was started again")
        if operated.await_end(run) != ["Completed"]:
            raise Failed("the run did not complete")


@contextlib.contextmanager
def _operated(case: "Case") -> Iterator[Operated]:
    """A server with the deployments of the code that is struck, for the runs of `case`."""
    folder = case.folder / "operated"
    folder.mkdir(parents=True, exist_ok=True)
    with webhook() as (address, _):
        operated = Operated(folder, webhook=address)
        operated.env |= case.lab.strikes(None) | case.lab.environment(case.root)
        try:
            operated.deploy(case.lab.checkout)
            yield operated
        finally:
            operated.end()
