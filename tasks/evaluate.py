"""Evaluate: compute metrics from the predictions on a test split, without running the model again."""

import json
import re

import numpy as np
import pandas as pd
from prefect import task

from storage import commits, manifest, tables
from storage.error_policy import Permanent
from storage.kinds import PREDICTIONS, PROBABILITY_PREFIX, DatasetURI, EvaluationURI, PredictionsURI
from storage.manifest import JSON
from storage.statistics import EvaluationStatistics
from tasks.images import image_facts
from tasks.learning import images, metrics, slices
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import make_once
from tasks.promotion import answers
from tasks.resources.needs import Limits
from tasks.stages import Evaluate


class WrongRows(Permanent):
    """The predictions and the test rows do not match: a row is missing, duplicated or unknown, or a label differs."""


@task(name="evaluate", **task_options)
def evaluate(predictions: PredictionsURI, *, limits: Limits = Limits(), name: str = "evaluate") -> EvaluationURI:
    """Compute all metrics and the worst mistakes over exactly the test rows; raise `WrongRows` for others."""
    stage = Evaluate(predictions=predictions)
    return make_once(stage, lambda: write_evaluation(stage), name=name, timeout_s=limits.stage_s)


def write_evaluation(stage: Evaluate) -> None:
    """Compute and commit the target of `stage`: metrics.json, per_class.json, confusion.json and others.

    Compares classes by name. Classes that only the model knows come after those of the rows. Predicting one counts as
    wrong, as does every prediction for a row whose class the model does not know.
    """
    predictions, target = stage.predictions, stage.target
    predicted = manifest.load(predictions)
    dataset = DatasetURI(predicted.parent("dataset", of=predictions))
    rows = tables.read_split(predictions, "test").to_pandas()
    _check_rows(predictions, rows, tables.read_split(dataset, "test", columns=["id", "label"]).to_pandas())
    known = answers.classes_of(rows.columns)
    there = images.classes_of(manifest.load(dataset).columns["metadata"])
    classes = [*there, *(name for name in known if name not in there)]
    labels = rows["label"].to_numpy()
    probabilities = metrics.in_order(rows[[f"{PROBABILITY_PREFIX}{name}" for name in known]].to_numpy(), known, classes)
    chosen = np.array([classes.index(name) for name in known])[rows["prediction"].to_numpy()]
    counts = metrics.confusion(labels, chosen, num_classes=len(classes))
    summary = metrics.summary(labels, chosen, probabilities)
    untempered = metrics.at_power(probabilities, predicted.statistics_of(PREDICTIONS).temperature)
    ids, names = rows["id"].to_numpy(), [there[label] for label in labels]
    is_right, confidence = chosen == labels, probabilities.max(1)
    compared = slices.find(image_facts.describe_rows(dataset, ids, names), labels, is_right)
    content: JSON = {
        "metrics": summary.model_dump(),
        "untempered": metrics.summary(labels, chosen, untempered).model_dump(),
        "per_class": metrics.per_class(counts, classes),
        "confusion": counts.tolist(),
        "calibration": metrics.calibration(is_right, confidence),
        "coverage": metrics.coverage(is_right, confidence),
        "slices": {"slices": [each.model_dump() for each in compared]},
        "worst": metrics.worst(ids, labels, chosen, confidence, count=40),
    }
    if "distance" in rows:
        content["kept"] = metrics.kept_by_distance(is_right, rows["distance"].to_numpy())
    commits.commit(
        target,
        kind="evaluation",
        parents={"predictions": predicted.as_parent(predictions)},
        parameters={},
        listed=[
            commits.write_file(target, f"{name}.json", json.dumps(value, indent=1).encode(), fixed_name=True)
            for name, value in content.items()
        ],
        statistics=EvaluationStatistics(
            **vars(summary),
            worse_slices=tuple(slices.worse(compared)) if compared else None,
            notice=predicted.statistics_of(PREDICTIONS).notice,
        ),
    )


def read_evaluation(uri: EvaluationURI) -> JSON:
    """Read the files of an evaluation by name (`metrics`, ...) and verify their checksums."""
    entries = manifest.load(uri).files
    return {re.split(r"[-.]", file.path)[0]: json.loads(manifest.read_file(uri, file)) for file in entries}


def _check_rows(uri: PredictionsURI, rows: pd.DataFrame, expected: pd.DataFrame) -> None:
    predicted, expected = rows.sort_values("id"), expected.sort_values("id")
    if not np.array_equal(predicted["id"].to_numpy(), expected["id"].to_numpy()):
        doubled = int(rows["id"].duplicated().sum())
        missing = len(set(expected["id"]) - set(rows["id"]))
        raise WrongRows(
            f"{uri} has {len(rows)} predictions for {len(expected)} test rows: {missing} are missing and {doubled} are "
            "duplicates; delete it and run again"
        )
    if not np.array_equal(predicted["label"].to_numpy(), expected["label"].to_numpy()):
        raise WrongRows(f"{uri} has other labels than the test rows; delete it and run again")
