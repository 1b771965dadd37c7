"""`status` names what keeps a model from staying fresh, with the next step, and says so by its exit code."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Scheduled

from flows import PROJECT
from flows.cli import app
from flows.server import status
from storage.uri import Root
from tests import committed

HOURS = timedelta(hours=1)


@flow(name="nightly")
def _flow() -> None: ...


class Server:
    """A real server with one deployment of the project that has a schedule, and a work pool that a worker has seen."""

    def __init__(self, client: Any) -> None:
        self.client = client
        client.create_work_pool(WorkPoolCreate(name="status-pool", type="process"), overwrite=True)
        self.deployment = client.create_deployment(
            flow_id=client.create_flow(_flow),
            name="train",
            tags=[PROJECT],
            work_pool_name="status-pool",
            schedules=[DeploymentScheduleCreate(schedule=IntervalSchedule(interval=24 * HOURS), active=True)],
        )

    def start_worker(self) -> None:
        self.client.send_worker_heartbeat("status-pool", "worker", heartbeat_interval_seconds=30)

    def run(self, state: Any) -> None:
        run = self.client.create_flow_run_from_deployment(self.deployment, tags=[PROJECT])
        self.client.set_flow_run_state(run.id, state, force=True)

    def pause(self, is_paused: bool) -> None:
        (schedule,) = self.client.read_deployment_schedules(self.deployment)
        self.client.update_deployment_schedule(self.deployment, schedule.id, active=not is_paused)


@pytest.fixture
def server(prefect_server: object) -> Iterator[Server]:
    with get_client(sync_client=True) as client:
        server = Server(client)
        yield server
        client.delete_deployment(server.deployment)


@pytest.fixture
def no_server() -> Iterator[None]:
    with temporary_settings({PREFECT_API_URL: None}):
        yield


def _of_server(root: Root, **age: Any) -> list[str]:
    return [problem for problem in status.problems(root, **age) if "nightly" in problem or "status-pool" in problem]


def test_each_thing_that_keeps_a_schedule_from_training_is_named_until_it_is_mended(server: Server, root: Root) -> None:
    assert ["no worker is there" in problem for problem in _of_server(root)] == [True]
    server.start_worker()
    assert _of_server(root) == [], "a new deployment need not have run yet"
    server.pause(True)
    assert _of_server(root) == [
        "the schedule of nightly/train is paused; resume it: prefect deployment schedule resume nightly/train"
    ]
    server.pause(False)
    (problem,) = _of_server(root, max_age=timedelta(0))
    assert problem.startswith("no run of nightly/train has ended well for too long: it was deployed 0.0 h ago")
    server.run(Completed())
    assert _of_server(root, max_age=HOURS) == []
    server.run(Scheduled(name="Late", scheduled_time=datetime.now(UTC) - 3 * HOURS))
    server.run(Scheduled(name="Late", scheduled_time=datetime.now(UTC)))
    (problem,) = _of_server(root)
    assert problem.startswith("nightly/train should have started ") and "3.0 h ago" in problem


def test_without_a_server_the_newest_report_and_the_registry_count(
    root: Root, capsys: pytest.CaptureFixture[str], no_server: None
) -> None:
    models = [committed.run(root, f"model{number}") for number in range(6)]
    committed.decide(root, models[0])
    assert app.main(words=["status", "--storage", str(root)]) == 0
    assert capsys.readouterr().out == "all is well\n"
    for model in models[1:]:
        committed.decide(root, models[0], challenger=model)
    assert app.main(words=["status", "--storage", str(root), "--max-age", "0.001s"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"the newest report below {root} was made 0.0 h ago; run the pipeline")
    assert told[1].startswith(f"the last 5 models of {committed.DATA} were rejected for the same reason: ")
    assert app.main(words=["status", "--storage", str(root), "--max-age", "soon"]) == 2
