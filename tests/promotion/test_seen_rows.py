"""Images that move between train and test: rows that a compared model has seen in training count for no model."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import files, manifest, tables
from storage.decision import Decision
from storage.kinds import EVALUATION
from storage.uri import URI, CheckpointURI, EvaluationURI, PredictionsURI, Root
from tasks.evaluate import evaluate
from tasks.learning import recipes
from tasks.learning.recipes import Gate
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tasks.preprocess import preprocess
from tasks.promotion.gate import judge
from tasks.runners.runner import InProcessRunner
from tests import committed
from tests.image_folder import encoded
from tests.ingested import ingested

CLASSES = ("down", "plain")
GATE = Gate(metric="accuracy", minimum=0.0, max_p_value=0.0)
TRAIN, TEST = range(30), range(30, 50)
"""Numbers of the pictures of each class."""
MOVED = range(30, 42)
"""Test pictures of each class that become training pictures; as many training pictures become test pictures."""


class Versions:
    """A folder of pictures that is split in one way and then in another, and models of both."""

    def __init__(self, folder: Path) -> None:
        self.root, self.folder = Root(str(folder / "root")), folder / "pictures"
        self.decisions: list[Decision] = []

    def prepare(
        self, test: Callable[[int], bool], kind: str = "folder", wrong: range = range(0), **settings: Any
    ) -> Plan:
        """Ingest and prepare the pictures, those with `test` numbers in the test split; `wrong` ones as `plain`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        rows: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
        for label, name in enumerate(CLASSES):
            for number in (*TRAIN, *TEST):
                rows["test" if test(number) else "train"].append(
                    {"name": f"{number:02}.png", "label": name, "image": encoded(100 * label + number, 2 * label)}
                )
        for split, listed in rows.items():
            if kind == "Parquet":
                self.folder.mkdir(exist_ok=True)
                table = pa.Table.from_pylist(listed).select(["image", "label"])
                pq.write_table(table, self.folder / f"{split}-of-a-new-export.parquet")
                continue
            for row in listed:
                name = "plain" if int(row["name"][:2]) in wrong else row["label"]
                file = self.folder / split / name / f"{row['label']}-{row['name']}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(row["image"])
        recipe = recipes.override(recipes.load("images-resnet18"), {"image_size": 16} | settings)
        plan = make_plan.make_plan(
            storage=self.root, recipe=recipe, data=str(self.folder), workers=0, registered_model="p"
        )
        runner = InProcessRunner()
        preprocess.fn(ingested(plan), plan.recipe.split, runner)
        return plan

    def model(
        self, plan: Plan, name: str = "", initial: CheckpointURI | None = None, **parameters: Any
    ) -> CheckpointURI:
        uri = CheckpointURI(self.root.child(f"checkpoints/{name or 'champion'}-0123456789ab"))
        parents: dict[str, URI] = {"prepared": plan.preprocess.target} | ({"initial": initial} if initial else {})
        committed.commit(uri, "checkpoint", parents=parents, parameters={"training": parameters})
        return uri

    def evaluation(self, plan: Plan, model: CheckpointURI, is_right: Callable[[int, int], bool]) -> EvaluationURI:
        """Of predictions on the test rows of `plan` that are right where the label and its nth row say so."""
        test = tables.read_split(plan.preprocess.target, "test", columns=["id", "label"]).sort_by("id")
        labels = test["label"].to_numpy()
        nth = [int((labels[:row] == label).sum()) for row, label in enumerate(labels)]
        right = np.array([is_right(int(label), number) for label, number in zip(labels, nth, strict=True)])
        predicted = np.where(right, labels, 1 - labels)
        probabilities = np.where(predicted[:, None] == np.arange(len(CLASSES)), 0.9, 0.1)
        rows = committed.predictions(labels, probabilities, CLASSES).set_column(0, "id", test["id"])
        uri = PredictionsURI(self.root.child(f"predictions/{model.name}-{plan.preprocess.target.fingerprint}"))
        parents = {"checkpoint": model, "dataset": plan.preprocess.target}
        committed.commit_rows(uri, "predictions", rows, parents=parents)
        return evaluate.fn(uri)

    def decide(
        self, plan: Plan, model: CheckpointURI, evaluation: EvaluationURI, champion: EvaluationURI | None = None
    ) -> Decision:
        decision = judge(model, evaluation, self.decisions, champion, GATE)
        self.decisions.append(decision)
        return decision


def first_split(number: int) -> bool:
    return number in TEST


def second_split(number: int) -> bool:
    """Of each class: 12 pictures that were training pictures, sorted before the 8 that stay."""
    return number in range(12) or (number in TEST and number not in MOVED)


def is_memorized(label: int, nth: int) -> bool:
    """Right about the training pictures of before, and half of the others."""
    return nth < 12 or nth % 2 == 0


def is_honest(label: int, nth: int) -> bool:
    """Right about three quarters of whatever it is."""
    return nth % 4 != 0


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path)


@pytest.fixture
def champion(versions: Versions) -> CheckpointURI:
    """The champion of the first split."""
    plan = versions.prepare(first_split)
    model = versions.model(plan)
    versions.decide(plan, model, versions.evaluation(plan, model, is_honest))
    return model


@pytest.mark.parametrize("kind", ["Parquet", "encoded"])
def test_an_honest_challenger_beats_a_champion_that_has_seen_the_new_test_rows(
    versions: Versions, champion: CheckpointURI, kind: str
) -> None:
    plan = versions.prepare(second_split, kind, store="files" if kind == "encoded" else "pixels")
    challenger = versions.model(plan, "challenger")
    scores = {
        model: versions.evaluation(plan, model, right)
        for model, right in ((champion, is_memorized), (challenger, is_honest))
    }
    recorded = [manifest.load(scores[model]).statistics_of(EVALUATION) for model in (champion, challenger)]
    assert recorded[0].test_accuracy > recorded[1].test_accuracy, "on all rows"
    decision = versions.decide(plan, challenger, scores[challenger], champion=scores[champion])
    assert decision.promoted
    assert decision.reason == (
        "test accuracy 0.7500 is at least the champion's 0.5000 on the same rows; 24 of 40 test rows excluded, as they "
        "were training or validation rows: 24 of the champion"
    )
    assert decision.difference and (decision.num_excluded, decision.difference.num_rows) == (24, 16)
    warm = versions.model(plan, "warm", initial=versions.model(plan, "middle", initial=champion))
    versions.decisions.clear()
    decision = versions.decide(plan, warm, versions.evaluation(plan, warm, is_memorized))
    assert decision.reason.startswith("test accuracy 0.5000 is not above 0.5000")
    assert "they were training or validation rows: 24 of this model" in decision.reason, "its first model's rows"


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("champion", "could not be checked: .* has images of another size"),
        ("file", "could not be checked: training began with a file of weights, which names no images"),
    ],
)
def test_a_warm_start_leaks_at_no_image_size_and_from_no_file_in_silence(
    versions: Versions, champion: CheckpointURI, start: str, message: str
) -> None:
    plan = versions.prepare(second_split, image_size=24)
    warm = versions.model(plan, "warm", initial=champion if start == "champion" else None, start=start)
    versions.decisions.clear()
    assert re.search(message, versions.decide(plan, warm, versions.evaluation(plan, warm, is_memorized)).reason)


def test_a_test_split_that_was_all_trained_on_decides_nothing(versions: Versions, champion: CheckpointURI) -> None:
    plan = versions.prepare(lambda number: number in range(10))
    challenger = versions.model(plan, "challenger")
    scores = [versions.evaluation(plan, model, is_honest) for model in (challenger, champion)]
    decision = versions.decide(plan, challenger, scores[0], champion=scores[1])
    assert (decision.promoted, decision.champion, decision.difference) == (False, champion, None)
    assert decision.reason == (
        "no test row of class down, plain counts; add test images that no model was trained on, or choose "
        "another registered model with --register-as NAME; 20 of 20 test rows excluded, as they were training or "
        "validation rows: 20 of the champion"
    )


def test_wrong_labels_of_new_test_rows_that_reverse_the_comparison_are_in_the_reason(
    versions: Versions, champion: CheckpointURI
) -> None:
    plan = versions.prepare(first_split, wrong=range(40, 50))  # ten of each class in `plain`, the downs first there
    challenger = versions.model(plan, "challenger")
    rules = {
        challenger: lambda label, nth: nth % 2 == 0 or (label == 1 and nth < 10),
        champion: lambda label, nth: nth % 4 != 0 and not (label == 1 and nth < 10),
    }
    scores = {model: versions.evaluation(plan, model, is_right) for model, is_right in rules.items()}
    decision = versions.decide(plan, challenger, scores[challenger], champion=scores[champion])
    assert decision.difference and decision.difference.difference == 3 / 40
    assert decision.known_difference and decision.known_difference.num_rows == 30
    assert decision.reason.endswith(
        "; on the 30 test rows whose label the champion's data had it is worse (-0.2333): "
        "check the labels of the other test images"
    )
    assert decision.comparisons[1].startswith("compared with the champion, test rows whose label its data had: diff")


def test_a_champion_whose_data_was_deleted_is_compared_with_a_note_in_the_reason(
    versions: Versions, champion: CheckpointURI
) -> None:
    prepared = manifest.load(champion).parent("prepared", of=champion)
    files.remove(prepared)
    message = f"{prepared} is not committed: it has no _manifest.json"
    plan = versions.prepare(second_split)
    challenger = versions.model(plan, "challenger")
    scores = [versions.evaluation(plan, model, is_honest) for model in (challenger, champion)]
    decision = versions.decide(plan, challenger, scores[0], champion=scores[1])
    assert decision.promoted and decision.num_excluded == 0
    assert decision.reason.endswith(f"; whether the champion was trained on test rows could not be checked: {message}")
