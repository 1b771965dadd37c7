"""Each promotion sends one event, with an id that follows from the registry, despite crashes and other runs."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from storage import registry
from storage.decision import Decision
from tasks import promote
from tasks.learning import recipes
from tasks.orchestration import announce
from tasks.planning import make_plan
from tests.runs import await_that
from tests.tasks import test_promote

_DATA = "mnist-sample"


class Scene:
    """A challenger that the gate lets through, and the ids of the events that the server was handed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan = self.make(0.9)
        self.sent: list[str] = []
        self.is_reachable = True
        self.challenger: tuple[Any, Any] = test_promote.Scene(folder).model("first", 0.95)

    def make(self, floor: float) -> Any:
        recipe = recipes.override(recipes.load("mnist-sample-resnet18"), {"minimum": floor})
        return make_plan.make_plan(storage=str(self.folder), recipe=recipe)

    def send(self, registered_model: str, decision: Decision) -> None:
        if not self.is_reachable:
            raise ConnectionError("nobody answers")
        self.sent.append(str(announce.event_id(registered_model, decision)))

    def run(self) -> Decision:
        return promote.promote.fn(*self.challenger, self.plan.promote, None)  # type: ignore[arg-type]

    def decisions(self) -> list[Decision]:
        return registry.history(self.plan.root, _DATA)

    def ids(self) -> list[str]:
        return [str(announce.event_id(_DATA, decision)) for decision in self.decisions()]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(tmp_path)
    monkeypatch.setattr(announce, "send", made.send)
    return made


def test_repeated_run_sends_the_event_of_its_promotion_with_the_same_id(scene: Scene) -> None:
    for _ in range(3):
        scene.run()
    assert len(scene.decisions()) == 1
    assert scene.sent == scene.ids() * 3
    scene.plan = scene.make(0.8)
    assert scene.run().number == 2
    assert scene.sent == scene.ids()[:1] * 3, "another gate let the same champion through"


def test_events_of_two_roots_have_different_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = [Scene(tmp_path / name) for name in ("one", "other")]
    monkeypatch.setattr(announce, "send", lambda *_: None)
    one, other = (scene.run() for scene in scenes)
    assert one.number == other.number
    assert announce.event_id(_DATA, one) != announce.event_id(_DATA, other)


def test_server_that_cannot_be_reached_fails_no_run_and_gets_the_event_of_its_repetition(scene: Scene) -> None:
    scene.is_reachable = False
    assert scene.run().promoted
    scene.is_reachable = True
    scene.run()
    assert scene.sent == scene.ids()


def test_old_promotion_is_not_announced_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.run()
    monkeypatch.setattr(announce, "_REPEATED_FOR", datetime.timedelta(0))
    scene.run()
    assert scene.sent == scene.ids()


def test_two_runs_that_judge_at_once_make_one_decision_and_one_event(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = registry.append

    def append_late(*arguments: Any) -> None:
        monkeypatch.setattr(registry, "append", append)
        scene.run()
        append(*arguments)

    monkeypatch.setattr(registry, "append", append_late)
    mine = scene.run()
    assert scene.decisions() == [mine]
    assert set(scene.sent) == {*scene.ids()}


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.slow  # the start of Prefect's server takes most of its time
def test_server_gets_an_event_once(tmp_path: Path) -> None:
    from prefect.client.orchestration import get_client
    from prefect.events.filters import EventFilter, EventNameFilter

    scene = Scene(tmp_path)
    decision = scene.run()
    with get_client(sync_client=True) as client:

        def ids() -> list[str]:
            wanted = EventFilter(event=EventNameFilter(name=[announce.PROMOTED]))
            events = [str(event.id) for event in client.read_events(filter=wanted, limit=50).events]
            return [event for event in events if event in scene.ids()]  # the server is that of other tests, too

        await_that(lambda: ids() == scene.ids(), limit_s=30)
        announce.send(_DATA, decision)
        assert ids() == scene.ids()
