"""Flow runs on a Prefect server: short messages for invalid parameters, each error once, no superfluous runs."""

import contextlib
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Crashed

from flows import AUTO_SCHEDULED, PROJECT
from tasks.orchestration.stage import logger

_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
_PARAMETERS = {"set": "settings"}
"""Parameters whose names differ from those of the command line's options."""
DROPPED = "Dropped"
"""Final state, of type CANCELLED, of a schedule's run whose work another run of the schedule does."""
_CRASH = "Crash detected!"
"""Start of Prefect's log message for a task ended by a signal; a cancellation also sends one."""


class Refused(ValueError):
    """Invalid parameters of a deployment's run; the message names the parameters."""


@contextlib.contextmanager
def begun() -> Iterator[None]:
    """Begin a flow run: end runs that it replaces and task runs of dead processes, then check parameters in the block.

    In a deployment's run, raises a `ValueError` of the block as `Refused`, which the log shows in one line.
    """
    if deployment.id:
        plain = Plain()
        for name in ("prefect.flow_runs", "prefect.task_runs"):
            log = logging.getLogger(name)
            log.filters = [one for one in log.filters if not isinstance(one, Plain)] + [plain]
    with contextlib.suppress(httpx.HTTPError, ObjectNotFound):  # stale task runs only look wrong in the UI
        _end_dead_task_runs()
    with contextlib.suppress(httpx.HTTPError, ObjectNotFound):  # they would find nothing new
        _drop_piled_up()
    try:
        yield
    except ValueError as error:
        if not deployment.id:
            raise
        raise Refused(in_parameters(str(error))) from None


def in_parameters(text: str) -> str:
    """Replace the names of command-line options in `text` by those of the deployment's parameters."""
    return _OPTION.sub(lambda found: _PARAMETERS.get(found[1], found[1].replace("-", "_")), text)


def end_task_runs(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Mark the task runs of a crashed flow run as Crashed; the worker that detects the crash calls this hook.

    Task runs created after the crash belong to the next attempt, which may already run, and are left alone.
    """
    _end(_with_id(flow_run.id), state.message or "the flow run crashed", until=state.timestamp)


def _end_dead_task_runs() -> None:
    """End task runs of earlier attempts of this flow run, and of flow runs that ended without a worker noticing."""
    if flow_run.id:
        _end(_with_id(UUID(flow_run.id)), "the process of an earlier attempt of this flow run ended")
    over = filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=sorted(TERMINAL_STATES)))
    ours = filters.FlowRunFilter(tags=filters.FlowRunFilterTags(all_=[PROJECT]), state=over)
    _end(ours, "the flow run ended before this task run")


def _drop_piled_up() -> None:
    """Drop the runs of this run's schedule that wait for it: it does their work.

    While it has the deployment's only slot none of them can start. Runs with other parameters are left alone, as are
    those that a person started and those that are to resume after a crash.
    """
    if not (deployment.id and flow_run.id and AUTO_SCHEDULED in flow_run.tags):
        return
    waiting = filters.FlowRunFilter(
        deployment_id=filters.FlowRunFilterDeploymentId(any_=[UUID(deployment.id)]),
        tags=filters.FlowRunFilterTags(all_=[AUTO_SCHEDULED]),
        state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        expected_start_time=filters.FlowRunFilterExpectedStartTime.model_validate({"before_": datetime.now(UTC)}),
    )
    with get_client(sync_client=True) as client:
        parameters = client.read_flow_run(UUID(flow_run.id)).parameters
        for run in client.read_flow_runs(flow_run_filter=waiting):
            if run.run_count == 0 and run.parameters == parameters:
                message = f"run {flow_run.name} of its schedule does the same work"
                client.set_flow_run_state(run.id, Cancelled(name=DROPPED, message=message))


def _with_id(run: UUID) -> filters.FlowRunFilter:
    return filters.FlowRunFilter(id=filters.FlowRunFilterId(any_=[run]))


def _end(runs: filters.FlowRunFilter, message: str, *, until: datetime | None = None) -> None:
    """Mark the unfinished task runs of `runs`, or only those created by `until`, as Crashed."""
    unfinished = filters.TaskRunFilterStateType(any_=[one for one in StateType if one not in TERMINAL_STATES])
    alive = filters.TaskRunFilter(state=filters.TaskRunFilterState(type=unfinished))
    with get_client(sync_client=True) as client:
        for task_run in client.read_task_runs(flow_run_filter=runs, task_run_filter=alive):
            if until is not None and task_run.created is not None and task_run.created > until:
                continue
            client.set_task_run_state(task_run.id, Crashed(message=message), force=True)
            logger().info("task run %s: Crashed, %s", task_run.name, message)


class Plain(logging.Filter):
    """Log filter: one line for invalid parameters, each other error once, a cancellation as such."""

    def __init__(self) -> None:
        super().__init__()
        self._last_error: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.levelno >= logging.ERROR:
            if error is self._last_error:
                return False
            self._last_error = error
            if isinstance(error, Refused):
                record.msg, record.args, record.exc_info = str(error), (), None
        elif record.getMessage().startswith(_CRASH) and _is_cancelled(record):
            record.msg, record.args = "Stopped: the flow run was cancelled.", ()
            record.levelno, record.levelname = logging.INFO, "INFO"
        return True


def _is_cancelled(record: logging.LogRecord) -> bool:
    with contextlib.suppress(httpx.HTTPError, ValueError), get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(str(getattr(record, "flow_run_id", "")))).state
        return state is not None and (state.is_cancelling() or state.is_cancelled())
    return False
