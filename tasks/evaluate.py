"""Evaluate: metrics from predictions on a test split, every row once; the model does not run again."""

import json
import re
from typing import Any

import numpy as np
import pandas as pd
from prefect import task

from storage import manifest, tables
from storage.uri import DatasetURI, EvaluationURI, PredictionsURI
from tasks.learning import images, metrics
from tasks.options import task_options
from tasks.plan import Plan, evaluation_of
from tasks.stage import stage

_NUM_WORST = 40


class WrongRows(RuntimeError):
    """Predictions are not exactly one for every test row."""


@task(name="evaluate", **task_options)
def evaluate(predictions: PredictionsURI, plan: Plan) -> EvaluationURI:
    """Accuracy, loss, per-class figures, confusion, calibration and worst mistakes over every test row exactly once.

    Raises `WrongRows` when a row is missing, doubled or foreign.
    """
    target = evaluation_of(plan.root, predictions)
    name = "evaluate" if predictions == plan.predictions else "evaluate champion"
    with stage(name, target, deadline_s=plan.deadline_s) as current:
        if not current.reused:
            write_evaluation(predictions, target)
    return target


def write_evaluation(predictions: PredictionsURI, target: EvaluationURI) -> None:
    """Compute and commit `target`: metrics.json, per_class.json, confusion.json, calibration.json and worst.json."""
    made = manifest.load(predictions)
    dataset = DatasetURI(made.parents["dataset"])
    rows = tables.read_split(predictions, "test").to_pandas()
    _check_rows(rows, tables.read_split(dataset, "test", columns=["id", "label"]).to_pandas())
    classes = images.classes_of(manifest.load(dataset).columns["metadata"])
    labels = rows["label"].to_numpy()
    probabilities = rows[[f"probability_{name}" for name in classes]].to_numpy()
    counts = metrics.confusion(labels, rows["prediction"].to_numpy(), num_classes=len(classes))
    summary = metrics.summary(labels, probabilities)
    content: dict[str, Any] = {
        "metrics": summary,
        "per_class": metrics.per_class(counts, classes),
        "confusion": counts.tolist(),
        "calibration": metrics.calibration(labels, probabilities),
        "worst": metrics.worst(rows["id"].to_numpy(), labels, probabilities, count=_NUM_WORST),
    }
    manifest.commit(
        target,
        kind="evaluation",
        parents={"predictions": predictions},
        parameters={},
        listed=[
            manifest.write_file(target, f"{name}.json", json.dumps(value, indent=1).encode(), fixed_name=True)
            for name, value in content.items()
        ],
        statistics={**summary, "notice": made.statistics.get("notice")},
    )


def read_evaluation(uri: EvaluationURI) -> dict[str, Any]:
    """What `write_evaluation` wrote, by name, every byte checked."""
    listed = manifest.load(uri).files
    return {re.split(r"[-.]", file.path)[0]: json.loads(manifest.read_file(uri, file)) for file in listed}


def _check_rows(rows: pd.DataFrame, expected: pd.DataFrame) -> None:
    found, wanted = rows.sort_values("id"), expected.sort_values("id")
    if not np.array_equal(found["id"].to_numpy(), wanted["id"].to_numpy()):
        doubled = int(rows["id"].duplicated().sum())
        missing = len(set(expected["id"]) - set(rows["id"]))
        raise WrongRows(
            f"{len(rows)} predictions for {len(expected)} test rows: {missing} are missing and {doubled} doubled"
        )
    if not np.array_equal(found["label"].to_numpy(), wanted["label"].to_numpy()):
        raise WrongRows("the labels beside the predictions are not those of the test rows")
