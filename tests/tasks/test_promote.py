"""The gate: which model becomes champion, and which decisions are still valid."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from storage import champions, commits, files, registry
from storage.decision import Decision
from storage.uri import CheckpointURI, EvaluationURI
from tasks.learning import recipes
from tasks.planning import make_plan
from tasks.promote import decide
from tasks.promotion.gate import find_valid_decision, judge, rival_of
from tests import committed

_GATE = {"metric": "accuracy", "minimum": 0.9, "tolerance": 0.01}


class Scene:
    """A root with evaluations of any accuracy and a registry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.judge_only(False)
        self.evaluations: dict[str, EvaluationURI] = {}

    def model(
        self, name: str, accuracy: float, *, weights: str = "", **more: Any
    ) -> tuple[CheckpointURI, EvaluationURI]:
        """A checkpoint's URI and its committed evaluation; `weights` if they are not its own."""
        evaluation = EvaluationURI(self.plan.root.child(f"evaluations/{name}-0123456789ab"))
        scores: dict[str, Any] = dict.fromkeys(("test_accuracy", "balanced_accuracy", "macro_f1"), accuracy)
        committed.commit(evaluation, "evaluation", **scores | more)
        checkpoint = CheckpointURI(self.plan.root.child(f"checkpoints/{name}-0123456789ab"))
        listed = [commits.write_file(checkpoint, "weights.safetensors", (weights or name).encode())]
        committed.commit(checkpoint, "checkpoint", listed)
        self.evaluations[checkpoint] = evaluation
        return checkpoint, evaluation

    def judge_only(self, value: bool) -> None:
        """Plan a run that records its decision but keeps the champion, or not."""
        recipe = recipes.override(recipes.load("mnist-sample-resnet18"), _GATE)
        self.plan = make_plan.make_plan(storage=str(self.folder), recipe=recipe, judge_only=value)

    def decisions(self) -> list[Decision]:
        return registry.history(self.plan.root, "mnist-sample")

    def find_valid_decision(self, challenger: tuple[CheckpointURI, EvaluationURI]) -> Decision | None:
        return find_valid_decision(
            *challenger, self.decisions(), self.plan.recipe.gate, judge_only=self.plan.judge_only
        )

    def decide(self, challenger: tuple[CheckpointURI, EvaluationURI], rival: EvaluationURI | str | None) -> Decision:
        """Judge and record."""
        decision = judge(*challenger, self.decisions(), rival, self.plan.recipe.gate, judge_only=self.plan.judge_only)
        registry.append(self.plan.root, "mnist-sample", decision)
        return decision

    def task(self, challenger: tuple[CheckpointURI, EvaluationURI]) -> Decision:
        """Judge and record as the task does, without a champion to score."""
        plan = self.plan
        return decide(*challenger, "mnist-sample", plan.recipe.gate, pytest.fail, judge_only=plan.judge_only)

    def night(self, name: str, accuracy: float) -> Decision:
        """Judge a new model beside everybody it has to be compared with, and record."""
        checkpoint, evaluation = self.model(name, accuracy)
        rival = rival_of(checkpoint, self.decisions())
        return self.decide((checkpoint, evaluation), self.evaluations[rival] if rival else None)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(
    ("runtime", "author"),
    [
        ({}, "ada"),
        (
            {"FLOW_RUN__ID": "1", "FLOW_RUN__NAME": "vit epochs=3", "FLOW_RUN__FLOW_NAME": "cifar10"}
            | {"DEPLOYMENT__ID": "2", "DEPLOYMENT__NAME": "train"},
            "deployment cifar10/train, run vit epochs=3",
        ),
    ],
    ids=["no run", "deployment"],
)
def test_a_decision_says_when_and_by_whom_it_was_made(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, runtime: dict[str, str], author: str
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    for name, value in runtime.items():
        monkeypatch.setenv(f"PREFECT__RUNTIME__{name}", value)
    before = datetime.datetime.now(datetime.UTC)
    made = scene.task(scene.model("first", 0.95))
    assert made.decided and before <= made.decided <= datetime.datetime.now(datetime.UTC)
    assert made.author == author and scene.decisions() == [made]


@pytest.mark.parametrize(("accuracy", "promoted"), [(0.95, True), (0.9401, True), (0.93, False)])
def test_a_challenger_may_lie_below_the_champion_by_no_more_than_the_tolerance(
    scene: Scene, accuracy: float, promoted: bool
) -> None:
    poor = scene.decide(scene.model("poor", 0.8999), None)
    assert not poor.promoted and "below the minimum" in poor.reason
    champion = scene.model("champion", 0.95)
    assert scene.decide(champion, None).promoted
    decision = scene.decide(scene.model("challenger", accuracy), champion[1])
    assert decision.promoted is promoted
    assert decision.champion == (decision.challenger if promoted else champion[0])


def test_a_champion_without_a_score_keeps_its_place_and_the_decision_does_not_stand(scene: Scene) -> None:
    champion, challenger = scene.model("champion", 0.95), scene.model("challenger", 0.99)
    scene.decide(champion, None)
    decision = scene.decide(challenger, "a worker was lost")
    assert decision.champion == champion[0]
    assert "a worker was lost" in decision.reason
    assert scene.find_valid_decision(challenger) is None


def test_what_a_person_rolled_back_is_not_promoted_under_another_name(scene: Scene) -> None:
    root, data = scene.plan.root, "mnist-sample"
    first, second = scene.model("first", 0.95), scene.model("second", 0.99)
    made = scene.decide(first, None)
    assert scene.find_valid_decision(first) == made
    scene.decide(second, first[1])
    assert scene.find_valid_decision(first) is None, "another champion took charge"
    champions.rollback(root, data)
    assert "this model was rolled back" in scene.decide(second, first[1]).reason
    files.remove(second[0])  # its weights are known all the same
    twin = scene.model("twin", 0.99, weights="second")
    decision = scene.decide(twin, first[1])
    assert (decision.promoted, decision.champion) == (False, first[0])
    assert "this model was rolled back" in decision.reason
    assert scene.decide(scene.model("second", 0.99, weights="others"), first[1]).promoted, "only the name is the same"
    champions.promote(root, twin[0], name=data)
    scene.decide(first, scene.evaluations[twin[0]])
    again = scene.decide(scene.model("again", 0.99, weights="second"), first[1])
    assert "rolled back" not in again.reason, "a person promoted this model again"


def test_a_run_that_only_judges_records_its_judgement_and_leaves_the_champion(scene: Scene) -> None:
    champion = scene.night("champion", 0.95)
    scene.judge_only(True)
    judged = scene.night("better", 0.96)
    assert (judged.promoted, judged.champion) == (False, champion.champion)
    assert "is at least the champion's 0.9500 on the same rows; it was only judged" in judged.reason
    better = scene.model("better", 0.96)
    assert scene.find_valid_decision(better) == judged
    scene.judge_only(False)
    assert scene.find_valid_decision(better) is None
    promoted = scene.night("better", 0.96)
    assert promoted.promoted
    scene.judge_only(True)
    assert scene.find_valid_decision(better) == promoted


def test_a_checkpoint_that_was_removed_is_not_left_in_charge_and_is_judged_again_once_it_is_there(scene: Scene) -> None:
    removed = scene.model("removed", 0.95)
    files.remove(removed[0])
    with pytest.raises(FileNotFoundError, match="was deleted before it could be promoted; run again"):
        scene.task(removed)
    assert registry.champion(scene.plan.root, "mnist-sample") is None
    assert scene.find_valid_decision(removed) is None
    committed.commit(removed[0], "checkpoint")
    assert scene.task(removed).promoted
