"""Models with any mistakes on sixty test rows, that are judged by the gate."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from storage import commits, registry, tables
from storage.decision import Decision
from storage.kinds import CheckpointURI, DatasetURI, EvaluationURI
from storage.uri import URI
from tasks.images import row_tables
from tasks.learning import images
from tasks.learning.recipes import Gate
from tasks.promote import promote
from tasks.promotion.gate import find_valid_decision, judge, rival_of
from tasks.runners.runner import InProcessRunner
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

    def dataset(
        self, name: str, train: Iterable[int], *, test: Iterable[int] = (), shape: tuple[int, int, int] = (2, 2, 1)
    ) -> DatasetURI:
        """A prepared dataset of rows with these numbers; up to 59 their images are those of the sixty test rows."""
        uri = DatasetURI(self.plan.root.child(f"datasets/prepared/{name}-0123456789ab"))
        listed, digests = [], []
        for split, numbers in (("train", np.array([*train])), ("test", np.array([*test], int))):
            labels = (numbers >= 40).astype(int)
            table = images.to_table(numbers, np.zeros((len(numbers), *shape), np.uint8), labels, classes=CLASSES)
            listed.append(tables.write_part(uri, table, split=split, index=0))
            digests.append((pd.DataFrame({"split": split, "id": numbers}), row_tables.digests_of(numbers[:, None])))
        named, contents = zip(*digests, strict=True)
        listed.append(row_tables.write_digests(uri, pd.concat(named), b"".join(contents)))
        committed.commit(uri, "prepared", listed, schema=tables.describe(table.schema))
        return uri

    def model(
        self,
        name: str,
        *wrong: int,
        knows: tuple[str, ...] = CLASSES,
        recipe: str = "usual",
        data: DatasetURI | None = None,
        initial: CheckpointURI | None = None,
        start: str = "random",
        network: str = "",
        weights: str = "",
    ) -> CheckpointURI:
        """A checkpoint whose answers are those of the labels but for `wrong`; its classes may come in another order."""
        other = {"cat": "dog", "dog": "cat"}
        predictions = [other[label] if row in wrong else label for row, label in enumerate(LABELS)]
        checkpoint = CheckpointURI(self.plan.root.child(f"checkpoints/{name}-0123456789ab"))
        parents: dict[str, URI] = {"prepared": data or self.plan.preprocess.target}
        committed.commit(
            checkpoint,
            "checkpoint",
            [commits.write_file(checkpoint, "weights.safetensors", (weights or name).encode())],
            parents=parents | ({"initial": initial} if initial else {}),
            parameters={"recipe": recipe, "workers": len(self.evaluations), "training": {"start": start}},
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

    def promote(self, challenger: CheckpointURI) -> Decision:
        """Judge and record as the task does."""
        return promote.fn(challenger, self.evaluations[challenger], "photos", Gate(**GATE), InProcessRunner())

    def valid(
        self, challenger: CheckpointURI, gate: dict[str, Any] = GATE, *, judge_only: bool = False
    ) -> Decision | None:
        """Return the decision on `challenger` that still holds."""
        evaluation = self.evaluations[challenger]
        return find_valid_decision(challenger, evaluation, self.history(), Gate(**gate), judge_only=judge_only)
