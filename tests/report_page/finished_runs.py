"""Runs that never ran, committed by the real functions: a model, its evaluation, the decision on it, and its report."""

import datetime
from typing import Any

from storage import files, manifest, registry
from storage.decision import METRICS, Decision
from storage.uri import URI, Root
from tasks.report import decision_as_json
from tests import committed
from tests.storage import results

START = datetime.datetime(2026, 3, 2, 3, 0, tzinfo=datetime.UTC)


def commit_run(
    root: Root,
    number: int,
    *,
    registered_model: str = "digits",
    recipe: str = "digits-resnet18",
    accuracy: float = 0.98,
    changes: dict[str, Any] | None = None,
    reason: str = "",
) -> URI:
    """Commit run `number`, hours after the one before; it is promoted if it beats the champion."""
    model, latest = results.run(root, f"run-{number}", accuracy=accuracy), registry.latest(root, registered_model)
    best = latest.metrics["champion now"]["test_accuracy"] if latest else 0.0
    champion = model.checkpoint if accuracy > best or not latest else latest.champion
    metrics = dict.fromkeys(METRICS.values(), accuracy) | {"macro_f1": accuracy - 0.01}
    decided = START + datetime.timedelta(hours=9 * number)
    decision = Decision(
        number=latest.number + 1 if latest else 1,
        champion=champion,
        challenger=model.checkpoint,
        evaluation=model.evaluation,
        promoted=champion == model.checkpoint,
        reason=reason or "it is better or not",
        gate={"metric": "accuracy", "minimum": 0.0, "tolerance": 0.0},
        metrics={"challenger": metrics, "champion now": {"test_accuracy": max(best, accuracy)}},
        decided=decided,
        author="ada",
    )
    registry.append(root, registered_model, decision)
    about = committed.statistics(
        "report",
        registered_model=registered_model,
        recipe=recipe,
        data=registered_model,
        changes=changes or {},
        settings=changes or {},
        seconds=75.0 + number,
    )
    values = {"parameters": {"decision": decision_as_json(decision, root)}, "statistics": about}
    made = manifest.load(model.report).model_copy(update=values | {"created": decided + datetime.timedelta(seconds=2)})
    files.put(model.report.child(manifest.NAME), made.signed().to_json())
    return model.report


def commit_runs(root: Root, count: int) -> None:
    """Commit `count` runs of three registered models with metrics that slowly improve; most change a field or two."""
    models = [("digits", "digits-resnet18"), ("holiday-photos-1a2b3c4d", "images-finetune"), ("insects", "insects-vit")]
    changes: list[dict[str, Any]] = [{}, {"epochs": 5}, {"learning_rate": 0.001, "seed": 3}, {"label_smoothing": 0.1}]
    for number in range(count):
        registered_model, recipe = models[number % 3]
        accuracy = 0.1 if number == 20 else 0.93 + 0.06 * number / count
        commit_run(
            root,
            number,
            registered_model=registered_model,
            recipe=recipe,
            accuracy=accuracy,
            changes=changes[number % 4],
        )
