"""A run of a deployment whose flow, and possibly its worker, is killed: it is restarted automatically."""

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.faults.history import checkpoint_of
from tests.prefect_system import PrefectSystem, webhook

if TYPE_CHECKING:
    from tests.faults.case import Case


def kill_flow(case: "Case", *, with_runner: bool) -> None:
    """Kill the flow in training, and its worker before it if asked; the same run resumes and completes."""
    from tests.faults.case import Failed

    parameters: dict[str, Any] = {
        "storage": case.root,
        "data": case.root.child(f"datasets/raw/{case.harness.golden.raw}"),
        "workers": 2,
        "settings": case.harness.settings(),
    }
    with _prefect_system(case) as prefect_system:
        prefect_system.start_worker()
        run = prefect_system.start("mnist/smoke", **parameters)
        case.until(lambda: case.history.has(checkpoint_of(1)), "epoch 1 is safe")
        engine = prefect_system.engine(run)
        if with_runner:
            prefect_system.kill_worker()
        case.send_signal(engine, signal.SIGKILL, what="flow, after its worker" if with_runner else "flow")
        case.until(lambda: prefect_system.state(run)["name"] == "Crashed", "the run was seen to have crashed")
        case.until(lambda: not prefect_system.processes(run), "what the flow had started ended with it")
        if with_runner:
            prefect_system.start_worker()
        case.until(lambda: prefect_system.starts(run) == 2, "the run was started again")
        if prefect_system.await_end(run) != ["Completed"]:
            raise Failed("the run did not complete")


@contextlib.contextmanager
def _prefect_system(case: "Case") -> Iterator[PrefectSystem]:
    """A server with the deployments of the code that is struck, for the runs of `case`."""
    folder = case.folder / "prefect-system"
    folder.mkdir(parents=True, exist_ok=True)
    with webhook() as (address, _):
        prefect_system = PrefectSystem(folder, webhook=address)
        prefect_system.env |= case.harness.injection_env(None) | case.harness.environment(case.root)
        try:
            prefect_system.deploy(case.harness.checkout)
            yield prefect_system
        finally:
            prefect_system.end()
