"""Runs whose process has died are marked as crashed, restarted at most three times, and given up; live ones are not."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
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
_LATER_S = 20 * 60.0


@flow
def _flow() -> None: ...


@task
def _task() -> None: ...


class Server:
    """A real server with one deployment, and the clock of its watch."""

    def __init__(self, client: Any) -> None:
        self.client, self.now_s = client, 0.0
        flow_id = client.create_flow(_flow)
        self.deployment = client.create_deployment(flow_id=flow_id, name="train", tags=[PROJECT])

    def watch(self) -> watch.Watch:
        return watch.Watch(lambda: self.now_s)

    def run(self, state: State[Any]) -> FlowRun:
        """A run of the deployment that is in `state`."""
        run: FlowRun = self.client.create_flow_run_from_deployment(self.deployment, tags=[PROJECT])
        self.set_state(run, state)
        return run

    def set_state(self, run: FlowRun, state: State[Any]) -> None:
        self.client.set_flow_run_state(run.id, state, force=True)

    def send_heartbeat(self, run: FlowRun, *, clock_ahead_s: float = 0) -> None:
        """Send a heartbeat from a machine whose clock is ahead; return once the server has stored it."""
        stored = watch.count_heartbeats(self.client, run)
        occurred = datetime.now(UTC) + timedelta(seconds=clock_ahead_s)
        event: dict[str, Any] = {"id": str(uuid.uuid4()), "event": "prefect.flow-run.heartbeat"}
        event |= {"occurred": occurred.isoformat(), "resource": {"prefect.resource.id": f"prefect.flow-run.{run.id}"}}
        self.client.request("POST", "/events", json=[event])
        await_that(lambda: watch.count_heartbeats(self.client, run) > stored, limit_s=60)

    def name(self, run: FlowRun) -> str:
        state = self.client.read_flow_run(run.id).state
        assert state is not None
        return str(state.name)


@pytest.fixture
def server() -> Iterator[Server]:
    with get_client(sync_client=True) as client:
        yield Server(client)


def look_later(server: Server, watching: watch.Watch, seconds: float = _LATER_S) -> None:
    """Look at the runs now and after `seconds` without a sign of life."""
    list(watching.look())
    server.now_s += seconds
    list(watching.look())


def test_silent_run_crashes_with_its_task_runs_and_a_cancelled_one_ends(server: Server) -> None:
    silent, cancelling = server.run(Running()), server.run(Cancelling())
    states: dict[str, State[Any]] = {"over": Completed(), "dead": Running()}
    task_runs = {
        name: server.client.create_task_run(_task, silent.id, name, state=state).id for name, state in states.items()
    }
    look_later(server, server.watch())
    assert [server.name(run) for run in (silent, cancelling)] == ["Crashed", "Cancelled"]
    after = {name: server.client.read_task_run(task_run).state.name for name, task_run in task_runs.items()}
    assert after == {"over": "Completed", "dead": "Crashed"}


@pytest.mark.parametrize("ahead_s", [-150.0, 3600.0])
def test_no_run_is_silent_because_its_machine_has_another_time(server: Server, ahead_s: float) -> None:
    run, watching = server.run(Running()), server.watch()
    for _ in range(2):
        server.send_heartbeat(run, clock_ahead_s=ahead_s)
        look_later(server, watching, watch.SILENCE_S - 1)
    assert server.name(run) == "Running"
    look_later(server, watching)
    assert server.name(run) == "Crashed"


def test_no_run_is_silent_because_the_server_was_away(server: Server) -> None:
    run, watching = server.run(Running()), server.watch()
    list(watching.look())
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        (line,) = watching.look()
    assert line.startswith("cannot read the server's runs; trying again: ")
    server.now_s += _LATER_S
    list(watching.look())
    assert server.name(run) == "Running"


def test_crashed_run_is_restarted_three_times_unless_it_is_alive_after_all(server: Server) -> None:
    run, alive, watching = server.run(Crashed()), server.run(Crashed()), server.watch()
    names = []
    for _ in range(watch.MAX_RESTARTS + 1):
        server.set_state(run, Crashed())
        list(watching.look())
        server.send_heartbeat(alive)
        look_later(server, watching, watch.PAUSE_S + 1)
        names.append(server.name(run))
    assert names == ["AwaitingRetry"] * watch.MAX_RESTARTS + [watch.GIVEN_UP]
    assert server.name(alive) == "Crashed"
    look_later(server, watching)
    assert (server.name(run), server.name(alive)) == (watch.GIVEN_UP, "AwaitingRetry")


def test_run_that_takes_its_machine_down_is_given_up_but_a_stop_counts_as_no_restart(server: Server) -> None:
    run, names = server.run(Running()), []
    server.client.update_flow_run_labels(run.id, {"prefect.worker.name": "worker"})
    for was_stopped in [False] * 3 + [True, False]:
        server.set_state(run, Running())
        list(watch.release(server.client, worker="worker", was_stopped=was_stopped))
        names.append(server.name(run))
    assert names == ["AwaitingRetry"] * 4 + [watch.GIVEN_UP]


def test_run_that_does_not_start_is_queued_again_after_a_while(server: Server) -> None:
    run, watching = server.run(State[Any](type=StateType.PENDING)), server.watch()
    look_later(server, watching, 10 * 60)  # a pod that pulls its image
    assert server.name(run) == "Pending"
    look_later(server, watching)
    assert server.name(run) == "AwaitingRetry"
