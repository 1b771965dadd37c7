"""Scoring by class name, whatever the order of a model's classes and whichever were added or removed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from storage import manifest
from storage.kinds import EVALUATION, EvaluationURI, PredictionsURI
from storage.uri import URI
from tasks.evaluate import evaluate, read_evaluation
from tasks.images import row_tables
from tasks.learning import images, recipes
from tasks.planning import make_plan
from tests import committed


class Scene:
    """A plan whose test rows have labels of the caller's, and predictions on them by models of any classes."""

    def __init__(self, folder: Path, *, classes: Sequence[str], labels: Sequence[str]) -> None:
        self.plan = make_plan.make_plan(storage=str(folder), recipe=recipes.load("mnist-sample-resnet18"))
        self.labels = np.array([list(classes).index(name) for name in labels])
        pixels = np.zeros((len(labels), 2, 2, 1), np.uint8)
        rows = images.to_table(np.arange(len(labels)), pixels, self.labels, classes=classes)
        digests = row_tables.digests_of(np.arange(len(labels)).reshape(-1, 1))
        named = pd.DataFrame({"split": "test", "id": np.arange(len(labels))})
        listed = row_tables.write_digests(self.plan.preprocess.target, named, digests)
        committed.commit_rows(self.plan.preprocess.target, "prepared", rows, listed)

    def evaluation(
        self,
        classes: Sequence[str],
        answers: Sequence[str],
        *,
        name: str = "",
        checkpoint: URI | None = None,
    ) -> EvaluationURI:
        """Of a model, called `name`, that knows `classes` and gives each answer a probability of 0.9."""
        name = name or "-".join(classes)
        uri = PredictionsURI(self.plan.root.child(f"predictions/{name}-0123456789ab"))
        predicted = np.array([list(classes).index(answer) for answer in answers])
        others = 0.1 / (len(classes) - 1)
        probabilities = np.full((len(answers), len(classes)), others, np.float32)
        probabilities[np.arange(len(answers)), predicted] = 0.9
        rows = committed.predictions(self.labels, probabilities, classes)
        parents = {"dataset": self.plan.preprocess.target} | ({"checkpoint": checkpoint} if checkpoint else {})
        committed.commit_rows(uri, "predictions", rows, parents=parents)
        return evaluate.fn(uri)


@pytest.mark.parametrize(
    ("labels", "knows", "answers", "accuracy", "confusion"),
    [
        ("cat cat dog", "dog cat", "cat dog dog", 2 / 3, [[1, 1], [0, 1]]),
        ("cat dog owl owl", "cat dog", "cat dog cat dog", 1 / 2, [[1, 0, 0], [0, 1, 0], [1, 1, 0]]),
        ("cat cat cat dog", "ape cat dog", "cat ape ape dog", 1 / 2, [[1, 0, 2], [0, 1, 0], [0, 0, 0]]),
    ],
    ids=["another order", "a class that the model does not know", "a class that is gone"],
)
def test_classes_are_compared_by_name(
    tmp_path: Path, labels: str, knows: str, answers: str, accuracy: float, confusion: list[list[int]]
) -> None:
    classes = sorted(set(labels.split()))
    scene = Scene(tmp_path, classes=classes, labels=labels.split())
    uri = scene.evaluation(knows.split(), answers.split())
    found = read_evaluation(uri)
    assert manifest.load(uri).statistics_of(EVALUATION).test_accuracy == pytest.approx(accuracy)
    assert found["confusion"] == confusion
    names = [row["class_name"] for row in found["per_class"]]
    assert names == [*classes, *sorted(set(knows.split()) - set(classes))]
    assert found["worst"][0]["prediction"] == names.index(answers.split()[found["worst"][0]["id"]])
