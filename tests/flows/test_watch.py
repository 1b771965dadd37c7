"""Runs whose process has died are marked as crashed, restarted at most three times, and given up; live ones are not."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Completed, Crashed, Running

from flows import PROJECT
from flows.server import watch
from tests.runs import await_that

pytestmark = pytest.mark.usefixtures("prefect_server")
_LATER = timedelta(minutes=20)


class Later(datetime):
    """A clock that is ahead of the server's, so that all that the server knows is old."""

    ahead = _LATER

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "Later":
        return cls.fromtimestamp((datetime.now(tz) + cls.ahead).timestamp(), tz)


@flow
def _flow() -> None: ...


@task
def _task() -> None: ...


class Server:
    """A real server with one deployment."""

    def __init__(self, client: Any) -> None:
        self.client = client
        flow_id = client.create_flow(_flow)
        self.deployment = client.create_deployment(flow_id=flow_id, name="train", tags=[PROJECT])

    def run(self, state: State[Any]) -> FlowRun:
        """A run of the deployment that is in `state`."""
        run: FlowRun = self.client.create_flow_run_from_deployment(self.deployment, tags=[PROJECT])
        self.set_state(run, state)
        return run

    def set_state(self, run: FlowRun, state: State[Any]) -> None:
        self.client.set_flow_run_state(run.id, state, force=True)

    def send_heartbeat(self, run: FlowRun) -> None:
        """Send a heartbeat of `run`; return once the server has stored it."""
        since = datetime.now(UTC)
        event: dict[str, Any] = {"id": str(run.id), "event": "prefect.flow-run.heartbeat"}
        event |= {"occurred": since.isoformat(), "resource": {"prefect.resource.id": f"prefect.flow-run.{run.id}"}}
        self.client.request("POST", "/events", json=[event])
        await_that(lambda: watch.has_heartbeat(self.client, run, since=since), limit_s=60)

    def name(self, run: FlowRun) -> str:
        state = self.client.read_flow_run(run.id).state
        assert state is not None
        return str(state.name)


@pytest.fixture
def server() -> Iterator[Server]:
    with get_client(sync_client=True) as client:
        yield Server(client)


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> watch.Watch:
    """A watch whose server has answered for long enough."""
    watching = watch.Watch()
    list(watching.look())
    monkeypatch.setattr(watch, "datetime", Later)
    return watching


def test_silent_run_crashes_with_its_task_runs_and_a_cancelled_one_ends(server: Server, watching: watch.Watch) -> None:
    silent, cancelling = server.run(Running()), server.run(Cancelling())
    states: dict[str, State[Any]] = {"over": Completed(), "dead": Running()}
    task_runs = {
        name: server.client.create_task_run(_task, silent.id, name, state=state).id for name, state in states.items()
    }
    list(watching.look())
    assert [server.name(run) for run in (silent, cancelling)] == ["Crashed", "Cancelled"]
    after = {name: server.client.read_task_run(task_run).state.name for name, task_run in task_runs.items()}
    assert after == {"over": "Completed", "dead": "Crashed"}


def test_no_run_is_silent_because_the_server_was_away(server: Server, watching: watch.Watch) -> None:
    run = server.run(Running())
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        (line,) = watching.look()
    assert line.startswith("cannot read the server's runs; trying again: ")
    list(watching.look())
    assert server.name(run) == "Running"


def test_crashed_run_is_restarted_three_times_unless_it_is_alive_after_all(
    server: Server, watching: watch.Watch
) -> None:
    run, alive = server.run(Crashed()), server.run(Crashed())
    server.send_heartbeat(alive)
    names = []
    for _ in range(watch.MAX_RESTARTS + 1):
        server.set_state(run, Crashed())
        list(watching.look())
        names.append(server.name(run))
    assert names == ["AwaitingRetry"] * watch.MAX_RESTARTS + [watch.GIVEN_UP]
    list(watching.look())
    assert (server.name(run), server.name(alive)) == (watch.GIVEN_UP, "Crashed")


def test_run_that_does_not_start_is_queued_again_after_a_while(
    server: Server, watching: watch.Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = server.run(State[Any](type=StateType.PENDING))
    with monkeypatch.context() as earlier:
        earlier.setattr(Later, "ahead", timedelta(minutes=10))  # a pod that pulls its image
        list(watching.look())
    assert server.name(run) == "Pending"
    list(watching.look())
    assert server.name(run) == "AwaitingRetry"
