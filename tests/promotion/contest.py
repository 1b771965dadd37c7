"""Models with any mistakes on sixty test rows, that are judged by the gate."""

from pathlib import Path
from typing import Any

from storage import commits, manifest, registry
from storage.decision import Decision
from storage.uri import CheckpointURI, DatasetURI, EvaluationURI
from tasks import promote
from tasks.learning.recipes import Gate
from tasks.promotion.gate import find_valid_decision, judge, rival_of
from tests import committed
from tests.tasks.test_evaluate import Scene

CLASSES = ("cat", "dog")
LABELS = ("cat",) * 40 + ("dog",) * 20
ANY: dict[str, Any] = {"metric": "accuracy", "minimum": 0.0, "tolerance": 0.0, "max_p_value": 0.0}
GATE = ANY | {"max_p_value": 0.05}


class Contest(Scene):
    """Sixty test rows, and models that are wrong on the rows that the caller says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, classes=CLASSES, labels=LABELS)
        self.evaluations: dict[str, EvaluationURI] = {}

    def model(
        self,
        name: str,
        *wrong: int,
        knows: tuple[str, ...] = CLASSES,
        recipe: str = "usual",
        data: str = "",
        network: str = "",
        weights: str = "",
    ) -> CheckpointURI:
        """A checkpoint whose answers are those of the labels but for `wrong`; its classes may come in another order."""
        other = {"cat": "dog", "dog": "cat"}
        predictions = [other[label] if row in wrong else label for row, label in enumerate(LABELS)]
        checkpoint = CheckpointURI(self.plan.root.child(f"checkpoints/{name}-0123456789ab"))
        parents = {"prepared": self.plan.preprocess.target}
        if data:
            parents["prepared"] = DatasetURI(self.plan.root.child(f"datasets/prepared/{data}-0123456789ab"))
            if not manifest.is_committed(parents["prepared"]):
                part = commits.write_file(parents["prepared"], "part", data.encode())
                listed = [part.model_copy(update={"split": "train", "rows": len(data)})]
                committed.commit(parents["prepared"], "prepared", listed)
        committed.commit(
            checkpoint,
            "checkpoint",
            [commits.write_file(checkpoint, "weights.safetensors", (weights or name).encode())],
            parents=parents,
            parameters={"recipe": recipe, "workers": len(self.evaluations)},
            model={"model": network, "classes": knows},
        )
        self.evaluations[checkpoint] = self.evaluation(knows, predictions, name=name, checkpoint=checkpoint)
        return checkpoint

    def history(self) -> list[Decision]:
        return registry.history(self.plan.root, "photos")

    def decide(
        self,
        challenger: CheckpointURI,
        gate: dict[str, Any] = GATE,
        *,
        rival: EvaluationURI | str | None = None,
        judge_only: bool = False,
    ) -> Decision:
        """Judge against the champion, unless `rival` says why it has no score, and record."""
        decisions = self.history()
        champion = rival_of(challenger, decisions)
        rival = rival or (self.evaluations[champion] if champion else None)
        evaluation, settings = self.evaluations[challenger], Gate(**gate)
        decision = judge(challenger, evaluation, decisions, rival, settings, judge_only=judge_only)
        registry.append(self.plan.root, "photos", decision)
        return decision

    def decide_first(self, challenger: CheckpointURI) -> Decision:
        """Judge and record as the task does, without a champion to score."""
        evaluation = self.evaluations[challenger]
        return promote.decide(challenger, evaluation, "photos", Gate(**GATE), lambda champion: f"{champion} is unknown")

    def valid(
        self, challenger: CheckpointURI, gate: dict[str, Any] = GATE, *, judge_only: bool = False
    ) -> Decision | None:
        """Return the decision on `challenger` that still holds."""
        evaluation = self.evaluations[challenger]
        return find_valid_decision(challenger, evaluation, self.history(), Gate(**gate), judge_only=judge_only)
