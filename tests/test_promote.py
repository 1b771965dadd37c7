"""The gate: who takes charge, and which decisions still stand."""

from pathlib import Path

import pytest

from storage import manifest, registry
from storage.registry import Decision
from storage.uri import CheckpointURI, EvaluationURI, Root
from tasks.learning import recipes
from tasks.plan import Plan
from tasks.promote import judge, standing

_GATE = {"accuracy_floor": 0.9, "margin": 0.01}


class Scene:
    """A root with evaluations of any accuracy and a registry."""

    def __init__(self, folder: Path) -> None:
        recipe = recipes.override(recipes.load("mnist-sample-resnet18"), _GATE)
        self.plan = Plan(root=Root(str(folder)), recipe=recipe)

    def model(self, name: str, accuracy: float) -> tuple[CheckpointURI, EvaluationURI]:
        """A checkpoint's URI and its committed evaluation."""
        evaluation = EvaluationURI(self.plan.root.child(f"evaluations/{name}-0123456789ab"))
        statistics = {"test_accuracy": accuracy, "test_loss": 1.0, "expected_calibration_error": 0.0, "num_rows": 100}
        manifest.commit(evaluation, kind="evaluation", parents={}, parameters={}, listed=[], statistics=statistics)
        return CheckpointURI(self.plan.root.child(f"checkpoints/{name}-0123456789ab")), evaluation

    def decisions(self) -> list[Decision]:
        return registry.history(self.plan.root, "mnist-sample")

    def standing(self, challenger: tuple[CheckpointURI, EvaluationURI]) -> Decision | None:
        return standing(*challenger, self.decisions(), self.plan.gate)

    def decide(self, challenger: tuple[CheckpointURI, EvaluationURI], rival: EvaluationURI | str | None) -> Decision:
        """Judge and record."""
        decision = judge(*challenger, self.decisions(), rival, self.plan.gate)
        registry.append(self.plan.root, "mnist-sample", decision)
        return decision


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(("accuracy", "promoted"), [(0.9, True), (0.8999, False)])
def test_without_a_champion_the_floor_decides(scene: Scene, accuracy: float, promoted: bool) -> None:
    decision = scene.decide(scene.model("first", accuracy), None)
    assert decision.promoted is promoted
    assert ("reaches" if promoted else "below") in decision.reason


@pytest.mark.parametrize(("accuracy", "promoted"), [(0.96, True), (0.95, True), (0.9401, True), (0.93, False)])
def test_a_challenger_may_lie_below_the_champion_by_no_more_than_the_margin(
    scene: Scene, accuracy: float, promoted: bool
) -> None:
    champion = scene.model("champion", 0.95)
    scene.decide(champion, None)
    decision = scene.decide(scene.model("challenger", accuracy), champion[1])
    assert decision.promoted is promoted
    assert decision.champion == (decision.challenger if promoted else champion[0])


def test_a_champion_without_a_score_keeps_its_place_and_the_decision_does_not_stand(scene: Scene) -> None:
    champion, challenger = scene.model("champion", 0.95), scene.model("challenger", 0.99)
    scene.decide(champion, None)
    decision = scene.decide(challenger, "a worker was lost")
    assert decision.champion == champion[0]
    assert "a worker was lost" in decision.reason
    assert scene.standing(challenger) is None


def test_a_decision_stands_until_another_champion_takes_charge(scene: Scene) -> None:
    first, second = scene.model("first", 0.95), scene.model("second", 0.99)
    made = scene.decide(first, None)
    assert scene.standing(first) == made
    scene.decide(second, first[1])
    assert scene.standing(first) is None


def test_what_a_person_rolled_back_is_not_promoted_again_by_the_gate(scene: Scene) -> None:
    first, second = scene.model("first", 0.95), scene.model("second", 0.99)
    scene.decide(first, None)
    made = scene.decide(second, first[1])
    reason = f"{registry.ROLLED_BACK}{second[0]}"
    changes = {"number": made.number + 1, "champion": first[0], "challenger": first[0], "reason": reason}
    registry.append(scene.plan.root, "mnist-sample", made.model_copy(update=changes))
    decision = scene.decide(second, first[1])
    assert (decision.promoted, decision.champion) == (False, first[0])
    assert "rolled back by hand" in decision.reason
    assert scene.standing(second) == decision
