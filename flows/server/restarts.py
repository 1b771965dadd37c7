"""Restarts of crashed runs: a deployment's run whose process or machine dies is restarted at most three times.

The server's automations restart runs while the server is up. `make up` restarts them in two other cases. After a crash
of the whole machine, since a restarted Prefect server has forgotten which events it saw, and delays events that follow
them by 15 minutes. And if a server on SQLite has lost the event of a crash ("database is locked").
"""

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from prefect.automations import AutomationCore, ChangeFlowRunState, EventTrigger, Posture
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import AwaitingRetry, Cancelled, Crashed

from flows import PROJECT

Labels = dict[str, str | list[str]]
"""Labels that an event's resource must have, by name."""
MAX_RESTARTS = 3
GIVEN_UP = "GivenUp"
"""Final state, of type CRASHED, of a run that crashed again after its last restart."""
PAUSE_S = 30.0
"""Seconds from a crash to the restart: the worker may report a crash twice, and the user may want to cancel."""
OVERDUE_S = 60.0
"""Seconds from a crash after which `make up` restarts a run that the server has not restarted."""
UNSTARTED_S = 300.0
"""Seconds after which a run that has not started counts as dead; a start normally takes seconds."""

_COUNT = "prefect.run-count"
_AGAIN = "restarted after a crash"
_GAVE_UP = f"crashed after {MAX_RESTARTS} restarts; press Retry in the UI to resume"


def automations(runs: Labels, ours: Labels) -> dict[str, AutomationCore]:
    """Build the automations that restart runs, by name; `runs` and `ours` match the events of this project's runs."""
    first, last = [str(number) for number in range(1, MAX_RESTARTS + 1)], [str(MAX_RESTARTS + 1)]
    again = ChangeFlowRunState(name="AwaitingRetry", state=StateType.SCHEDULED, message=_AGAIN, force=False)
    end = ChangeFlowRunState(name=GIVEN_UP, state=StateType.CRASHED, message=_GAVE_UP, force=True)
    begins = {"Pending", "Submitting", "InfrastructurePending", "pull-step.executed"}
    related: list[Labels] = [ours, {"prefect.resource.role": "deployment"}]
    return {
        "restart crashed runs": when_silent({"Crashed"}, PAUSE_S, {**runs, _COUNT: first}, related, then=again),
        "give up runs that keep crashing": when_silent({"Crashed"}, PAUSE_S, {**runs, _COUNT: last}, related, then=end),
        # No run count here: a heartbeat has none, and must still show that the run began. A run that crashes before it
        # begins has no count either: if a live worker reports it as crashed, a restart could repeat without end.
        "requeue runs that did not start": when_silent(begins, UNSTARTED_S, runs, related, then=again),
    }


def when_silent(
    after: set[str], within_s: float, match: Labels, related: Labels | list[Labels], *, then: ChangeFlowRunState
) -> AutomationCore:
    """Act if a run has no event in any state for `within_s` after one of `after`; each such event restarts the time."""
    trigger = EventTrigger(
        after={f"prefect.flow-run.{event}" for event in after},
        expect={"prefect.flow-run.*"},
        match=match,
        match_related=[*related] if isinstance(related, list) else related,
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=within_s),
    )
    return AutomationCore(name="", trigger=trigger, actions=[then])


def unfinished_runs(client: SyncPrefectClient, worker: str, *, since: datetime | None = None) -> list[FlowRun]:
    """List this project's deployment runs that `worker` began and that have not ended, or crashed after `since`."""
    types = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING] + ([StateType.CRASHED] if since else [])
    wanted = filters.FlowRunFilter(
        tags=filters.FlowRunFilterTags(all_=[PROJECT]),
        state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=types)),
    )
    found: list[FlowRun] = []
    while len(page := client.read_flow_runs(flow_run_filter=wanted, limit=200, offset=len(found))) == 200:
        found += page
    return [
        run
        for run in found + page
        if run.state
        and run.deployment_id
        and run.labels.get("prefect.worker.name") == worker
        and (run.state.type != StateType.CRASHED or (since and run.state.timestamp > since))
    ]


def overdue_runs(client: SyncPrefectClient, worker: str, *, since: datetime) -> list[FlowRun]:
    """List the runs of `worker` that crashed after `since` and that the server should have restarted by now.

    A run that crashed before it began is not restarted: its cause would prevent the next start too.
    """
    due = datetime.now().astimezone() - timedelta(seconds=OVERDUE_S)
    found = unfinished_runs(client, worker, since=since)
    return [
        run
        for run in found
        if run.state and run.state.name == "Crashed" and run.run_count and run.state.timestamp < due
    ]


def requeue(client: SyncPrefectClient, runs: Sequence[FlowRun], *, crashed: bool) -> Iterator[str]:
    """Return `runs`, whose processes are gone, to the queue for the next worker; yield a line for each.

    Runs that have since ended without a crash, or were restarted after one, are left alone. The limit of restarts
    applies only if they `crashed`, not if the worker was stopped.
    """
    for listed in runs:
        run = client.read_flow_run(listed.id)
        assert run.state is not None and listed.state is not None
        if (run.state.is_final() or listed.state.is_crashed()) and not run.state.is_crashed():
            continue
        if run.state.is_cancelling():
            state: State[None] = Cancelled(message="its worker stopped while the run was being cancelled")
        elif crashed and run.run_count > MAX_RESTARTS:
            state = Crashed(name=GIVEN_UP, message=_GAVE_UP)
        else:
            state = AwaitingRetry(message=_AGAIN if crashed else "the worker was stopped")
        _break_silence(client, run)
        client.set_flow_run_state(run.id, state, force=True)
        yield f"run {run.name}: its process has ended; new state: {state.name}"


def requeue_ended(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> Iterator[str]:
    """Do what `requeue` does for those of the crashed `runs` that have no live process on this machine."""
    alive = with_processes() if runs else set()
    yield from requeue(client, [run for run in runs if str(run.id) not in alive], crashed=True)


def with_processes() -> set[str]:
    """Return the ids of flow runs that have a live process on this machine."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError):
            variables = dict(one.split("=", 1) for one in entry.read_bytes().decode().split("\0") if one)
            found.add(variables.get("PREFECT__FLOW_RUN_ID", ""))
    return found


def _break_silence(client: SyncPrefectClient, run: FlowRun) -> None:
    """Send an event for `run`, or the server's automations would end it again for its missed heartbeats.

    The server may delay the event of the state change itself.
    """
    event = {
        "id": str(uuid.uuid4()),
        "event": "prefect.flow-run.put-back",
        "occurred": datetime.now().astimezone().isoformat(),
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run.id}", _COUNT: str(run.run_count)},
        "related": [
            {"prefect.resource.id": f"prefect.tag.{PROJECT}", "prefect.resource.role": "tag"},
            {"prefect.resource.id": f"prefect.deployment.{run.deployment_id}", "prefect.resource.role": "deployment"},
        ],
    }
    client.request("POST", "/events", json=[event])
