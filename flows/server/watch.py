"""Watch over a Prefect server's runs: mark dead ones as Crashed, and restart crashed ones at most three times.

It reads the runs' states, since a busy server on SQLite loses some events. `make up` watches its own server. Beside a
server for several machines, keep `data-to-model watch` running on one of them.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.events.filters import EventFilter
from prefect.exceptions import PrefectException
from prefect.states import AwaitingRetry, Cancelled, Crashed

from flows import PROJECT
from flows.server.temporary_server import require_named_server
from storage import terminal
from storage.manifest import JSON

LOOK_S = 10.0
"""Seconds between two looks at the runs."""
SILENCE_S = 90.0
"""Seconds without a heartbeat after which a run counts as dead: three heartbeats of 30 s, as Prefect advises."""
PAUSE_S = 30.0
"""Seconds from a crash to the restart: the worker may report a crash twice, and the user may want to cancel."""
START_LIMIT_S = 900.0
"""Seconds after which a run that has not started counts as dead: longer than Kubernetes may take to start its pod."""
OLD = timedelta(days=1)
"""Age from which a crash is left alone: nobody waits for that run any more."""
MAX_RESTARTS = 3
GIVEN_UP = "GivenUp"
"""Final state, of type CRASHED, of a run that crashed again after its last restart."""

_RESTARTED = "restarted after a crash"
_SILENT = f"no heartbeat for {SILENCE_S:.0f} s"


def main() -> int:
    require_named_server()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service manager stops it this way
    watch = Watch()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            terminal.show_lines(watch.look())
            time.sleep(LOOK_S)
    return 0


class Watch:
    """Looks at the runs of the server at PREFECT_API_URL, again and again.

    It compares no clocks of machines: `clock`, in seconds, measures how long nothing new of a run reaches the server.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._signs: dict[UUID, tuple[tuple[UUID, int], float]] = {}
        """State and number of heartbeats of each run, and the time at which it counts as dead if neither changes."""

    def look(self) -> Iterator[str]:
        """Look once at all runs; yield a line for each change, or if the server does not answer."""
        try:
            with get_client(sync_client=True) as client:
                for run in _unfinished_runs(client):
                    if state := self._new_state(client, run):
                        yield from _set_state(client, run, state)
        except (httpx.HTTPError, PrefectException) as error:
            self._signs.clear()  # heartbeats may have been lost with the server
            yield f"cannot read the server's runs; trying again: {type(error).__name__}: {error}"

    def _new_state(self, client: SyncPrefectClient, run: FlowRun) -> State[None] | None:
        """Return the state that a run without a process gets; None for any other run."""
        assert run.state is not None
        sign = (run.state.id, count_heartbeats(client, run))
        earlier, deadline = self._signs.get(run.id, (None, 0.0))
        if sign != earlier:
            has_crashed = run.state.is_crashed() and not (earlier and earlier[0] == run.state.id)
            silence_s = START_LIMIT_S if run.state.is_pending() else PAUSE_S if has_crashed else SILENCE_S
            deadline = self._clock() + silence_s
            self._signs[run.id] = sign, deadline
        if self._clock() < deadline or str(run.id) in _with_processes():
            return None
        if run.state.is_pending() or run.state.is_crashed():
            return _restarted(client, run)
        return _cancelled() if run.state.is_cancelling() else Crashed(message=_SILENT)


def release(client: SyncPrefectClient, *, worker: str, was_stopped: bool) -> Iterator[str]:
    """Return the runs that ended with `worker` to the queue; unless it `was_stopped`, as a restart after a crash."""
    for run in _unfinished_runs(client):
        assert run.state is not None
        if run.labels.get("prefect.worker.name") == worker:
            state = AwaitingRetry(message="the worker was stopped") if was_stopped else _restarted(client, run)
            yield from _set_state(client, run, _cancelled() if run.state.is_cancelling() else state)


def _unfinished_runs(client: SyncPrefectClient) -> list[FlowRun]:
    """List this project's deployment runs that have begun and not ended, or crashed within a day and not given up."""
    begun = _read(client, [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING])
    crashed = _read(client, [StateType.CRASHED], end_time={"after_": datetime.now(UTC) - OLD})
    return begun + [run for run in crashed if run.state and run.state.name != GIVEN_UP]


def _read(client: SyncPrefectClient, types: list[StateType], **more: JSON) -> list[FlowRun]:
    of_project = {"tags": {"all_": [PROJECT]}, "state": {"type": {"any_": types}}}
    wanted = FlowRunFilter.model_validate(of_project | more)
    runs: list[FlowRun] = []
    while len(page := client.read_flow_runs(flow_run_filter=wanted, limit=200, offset=len(runs))) == 200:
        runs += page
    return [run for run in runs + page if run.state and run.deployment_id]


def _restarted(client: SyncPrefectClient, run: FlowRun) -> State[None]:
    """Return the state of a run that is restarted, or given up after its last restart."""
    num_restarts = sum(state.message == _RESTARTED for state in client.read_flow_run_states(run.id))
    if num_restarts < MAX_RESTARTS:
        return AwaitingRetry(message=_RESTARTED)
    return Crashed(name=GIVEN_UP, message=f"crashed after {num_restarts} restarts; press Retry in the UI to resume")


def _cancelled() -> State[None]:
    return Cancelled(message="its process ended while it was being canceled")


def count_heartbeats(client: SyncPrefectClient, run: FlowRun) -> int:
    """Return how many heartbeats of `run` the server has stored, whatever time the run's machine gave them."""
    heartbeats = {
        "occurred": {"since": datetime(2000, 1, 1, tzinfo=UTC), "until": datetime.max.replace(tzinfo=UTC)},
        "event": {"name": ["prefect.flow-run.heartbeat"]},
        "resource": {"id": [f"prefect.flow-run.{run.id}"]},
    }
    return client.read_events(filter=EventFilter.model_validate(heartbeats), limit=1).total


def _with_processes() -> set[str]:
    """Return the ids of flow runs that have a live process on this machine."""
    ids = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError):
            variables = dict(item.split("=", 1) for item in entry.read_bytes().decode().split("\0") if item)
            ids.add(variables.get("PREFECT__FLOW_RUN_ID", ""))
    return ids


def _set_state(client: SyncPrefectClient, earlier: FlowRun, state: State[None]) -> Iterator[str]:
    """Set the state of a run unless it has changed since it was listed; mark its unfinished task runs as Crashed."""
    run = client.read_flow_run(earlier.id)
    if not (run.state and earlier.state and run.state.id == earlier.state.id):
        return
    unfinished = [kind for kind in StateType if kind not in TERMINAL_STATES]
    for task_run in client.read_task_runs(
        flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [run.id]}}),
        task_run_filter=TaskRunFilter.model_validate({"state": {"type": {"any_": unfinished}}}),
    ):
        client.set_task_run_state(task_run.id, Crashed(message="the process of its flow run has ended"), force=True)
    client.set_flow_run_state(run.id, state, force=True)
    yield f"run {run.name}: its process has ended; new state: {state.name}"
