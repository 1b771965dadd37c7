"""Each decision sends one event: at least once, always with the same id, despite crashes and other runs."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storage import commits, registry
from storage.decision import Decision
from storage.registry import Superseded
from storage.uri import CheckpointURI, EvaluationURI, Root
from tasks import promote
from tasks.learning import recipes
from tasks.orchestration import announce
from tasks.planning.plan import Plan

_DATA = "mnist-sample"


class Scene:
    """A challenger that the gate lets through, and the ids of the events that the server was handed."""

    def __init__(self, folder: Path) -> None:
        recipe = recipes.override(recipes.load("mnist-sample-resnet18"), {"minimum": 0.9})
        self.plan = Plan(root=Root(str(folder)), recipe=recipe)
        self.sent: list[str | None] = []
        self.is_reachable = True
        evaluation = self.plan.root.child("evaluations/first-0123456789ab")
        statistics = {"test_accuracy": 0.95, "test_loss": 1.0, "expected_calibration_error": 0.0, "num_rows": 100}
        commits.commit(evaluation, kind="evaluation", parents={}, parameters={}, listed=[], statistics=statistics)
        checkpoint = CheckpointURI(self.plan.root.child("checkpoints/first-0123456789ab"))
        commits.commit(checkpoint, kind="checkpoint", parents={}, parameters={}, listed=[])
        self.challenger: tuple[Any, ...] = (checkpoint, EvaluationURI(evaluation), self.plan, None)

    def send(self, data: str, decision: Decision) -> None:
        if not self.is_reachable:
            raise ConnectionError("nobody answers")
        self.sent.append(decision.event)

    def run(self) -> Decision:
        return promote.promote.fn(*self.challenger)

    def decisions(self) -> list[Decision]:
        return registry.history(self.plan.root, _DATA)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(tmp_path)
    monkeypatch.setattr(announce, "send", made.send)
    return made


def test_a_promotion_is_told_once_however_often_it_is_found_again(scene: Scene) -> None:
    for _ in range(3):
        scene.run()
    (decision,) = scene.decisions()
    assert scene.sent == [decision.event] != [None]


def test_a_champion_that_another_gate_lets_through_again_is_not_told_again(scene: Scene) -> None:
    scene.run()
    recipe = recipes.override(scene.plan.recipe, {"minimum": 0.8})
    plan = dataclasses.replace(scene.plan, recipe=recipe)
    scene.challenger = (*scene.challenger[:2], plan, None)
    assert scene.run().number == 2
    assert scene.sent == [scene.decisions()[0].event]


def test_a_run_that_died_between_decision_and_event_leaves_it_to_the_next_one(scene: Scene) -> None:
    promote.decide(*scene.challenger)
    assert scene.sent == []
    scene.run()
    assert scene.sent == [scene.decisions()[0].event]


def test_a_run_that_died_between_event_and_note_sends_it_again_with_the_same_id(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(registry, "note_announced", lambda *_: None)
        scene.run()
    scene.run()
    scene.run()
    assert scene.sent == [scene.decisions()[0].event] * 2


def test_a_server_that_cannot_be_reached_fails_no_run_and_is_told_later(scene: Scene) -> None:
    scene.is_reachable = False
    assert scene.run().promoted
    scene.is_reachable = True
    scene.run()
    assert scene.sent == [scene.decisions()[0].event]


def test_the_event_of_a_deployment_is_left_to_its_next_run_by_one_of_the_command_line(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.is_reachable = False
    with monkeypatch.context() as deployed:
        deployed.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "0")
        scene.run()
    scene.is_reachable = True
    scene.run()
    assert scene.sent == []
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "0")
    scene.run()
    assert scene.sent == [scene.decisions()[0].event] != [None]


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
    assert set(scene.sent) == {mine.event}


def test_what_an_earlier_version_or_a_person_decided_is_not_told(scene: Scene) -> None:
    by_hand = promote.decide(*scene.challenger)
    registry.append(scene.plan.root, _DATA, by_hand.model_copy(update={"number": 2, "event": None}))
    announce.announce(scene.plan.root, _DATA, scene.decisions()[1:])
    assert scene.sent == []
    with pytest.raises(Superseded):
        registry.append(scene.plan.root, _DATA, by_hand.model_copy(update={"number": 2}))
