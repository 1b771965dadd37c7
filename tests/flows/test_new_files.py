"""Files that were added start one run of a deployment, once they have arrived; a look that finds none starts none."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Completed, Failed, Running, Scheduled

from flows import new_files
from flows.server.flow_runs import Refused
from storage import files
from storage.uri import Root
from tests.runs import CHECKOUT, await_that

pytestmark = pytest.mark.usefixtures("prefect_server")


@flow(name="images")
def _train(data: str) -> None: ...


class Train:
    """The deployment `images/train` of a real server; its runs stay as they are created, since there is no worker."""

    def __init__(self, client: Any, data: Root) -> None:
        self.client, self.data = client, data
        flow_id = client.create_flow(_train)
        self.id = client.create_deployment(flow_id=flow_id, name="train", parameters={"data": str(data)})

    def look(self, settle: str = "0s") -> str:
        """The name of the state in which a look ends."""
        state: State[Any] = new_files.images(settle=settle, return_state=True)
        return str(state.name)

    def runs(self) -> list[FlowRun]:
        return [run for run in self.client.read_flow_runs() if run.deployment_id == self.id]

    def end(self, state: State[Any]) -> None:
        for run in self.runs():
            self.client.set_flow_run_state(run.id, state, force=True)


@pytest.fixture
def train(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Train]:
    """The deployment, whose images lie on a disk unless a test asks for S3."""
    root = Root(str(tmp_path / "images"))
    if getattr(request, "param", "") == "s3":
        root = Root(f"s3://{request.getfixturevalue('s3').bucket}/images")
    with get_client(sync_client=True) as client:
        deployment = Train(client, root)
        yield deployment
        client.delete_deployment(deployment.id)


def _add(root: Root, name: str, content: bytes = b"an image") -> None:
    files.put(root.child(name), content)


@pytest.mark.parametrize("train", ["local", "s3"], indirect=True)
def test_a_run_starts_for_added_and_changed_files_once_even_if_it_failed(train: Train) -> None:
    _add(train.data, "cat/1.png")
    assert train.look() == "Started" and train.look() == "NothingNew"
    (run,) = train.runs()
    assert run.state is not None and run.state.is_scheduled() and run.parameters == {"data": str(train.data)}
    train.end(Failed())
    _add(train.data, "cat/.1.png.part")
    assert train.look() == "NothingNew"
    _add(train.data, "dog/1.png")
    assert train.look() == "Started"
    train.end(Completed())
    _add(train.data, "dog/1.png", b"another image")
    assert train.look() == "Started" and len(train.runs()) == 3


def test_no_second_run_is_started_beside_an_active_one_but_beside_one_planned_for_the_night(train: Train) -> None:
    _add(train.data, "cat/1.png")
    tonight: State[Any] = Scheduled(scheduled_time=datetime.now(UTC) + timedelta(hours=9))
    train.client.create_flow_run_from_deployment(train.id, state=tonight)
    assert train.look() == "Started"
    _add(train.data, "cat/2.png")
    assert train.look() == "Waiting"
    train.end(Running())
    assert train.look() == "Waiting" and len(train.runs()) == 2
    train.end(Completed())
    assert train.look() == "Started"


def test_files_that_are_still_arriving_are_waited_for(train: Train) -> None:
    _add(train.data, "cat/1.png")
    stop = threading.Event()

    def copies() -> None:
        number = 2
        while not stop.wait(0.1):
            _add(train.data, f"cat/{number}.png")
            number += 1

    thread = threading.Thread(target=copies)
    thread.start()
    try:
        await_that(lambda: files.exists(train.data.child("cat/2.png")))
        assert train.look("1s") == "Waiting"
    finally:
        stop.set()
        thread.join()
    assert train.runs() == [] and train.look("1s") == "Started"


def test_what_cannot_be_watched_is_refused_by_name(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(train.id))
    with pytest.raises(Refused, match=r"data: there are no files at .* \(is its disk mounted\?\)"):
        new_files.images()
    with pytest.raises(Refused, match="deployment must be one of the server's, such as images/train, got 'no/such'"):
        new_files.images("no/such")
    with pytest.raises(Refused, match="settle must be"):
        new_files.images(settle="soon")


def test_a_look_imports_neither_ray_nor_torch() -> None:
    program = "import sys, flows.new_files; print({'ray', 'torch', 'torchvision', 'sklearn'} & sys.modules.keys())"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True).stdout == "set()\n"
