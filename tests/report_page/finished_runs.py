"""Runs that never ran, committed by the real functions: a model, its evaluation, the decision on it, and its report."""

import datetime
from typing import Any

from storage import commits, files, manifest, reference, registry
from storage.decision import METRICS, Decision
from storage.uri import URI, CheckpointURI, EvaluationURI, Root
from tasks.planning.result_uris import decision_as_json
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
    name, data, changes = f"run-{number}", f"{registered_model}-data", changes or {}
    raw = results.place(root, "raw", data)
    if not manifest.is_committed(raw):
        results.commit(root, "prepared", data, raw=results.commit(root, "raw", data))
    prepared = results.place(root, "prepared", data)
    parents: dict[str, URI] = {"checkpoint": results.commit(root, "checkpoint", name, prepared=prepared)}
    parents["predictions"] = results.commit(
        root, "predictions", name, checkpoint=parents["checkpoint"], dataset=prepared
    )
    parents["evaluation"] = results.commit(
        root, "evaluation", name, accuracy=accuracy, predictions=parents["predictions"]
    )
    decision = _decide(root, registered_model, parents, accuracy=accuracy, reason=reason)
    decided = START + datetime.timedelta(hours=9 * number)
    registry.append(root, registered_model, decision.made_by("ada").model_copy(update={"decided": decided}))
    report = results.place(root, "report", name)
    page = commits.write_file(report, "index.html", f"<title>{name}</title>".encode(), fixed_name=True)
    made = commits.commit(
        report,
        kind="report",
        parents=parents,
        parameters={"decision": decision_as_json(decision, reference.root_of(report))},
        listed=[page],
        statistics={
            "registered_model": registered_model,
            "recipe": recipe,
            "data": registered_model,
            "dataset": prepared.name,
            "changes": changes,
            "settings": {"epochs": 3, "learning_rate": 0.002, "seed": 0} | changes,
            "seconds": 75.0 + number,
        },
    )
    dated = made.model_copy(update={"created": decided + datetime.timedelta(seconds=2)}).signed()
    files.put(report.child(manifest.NAME), dated.to_json())
    return report


def _decide(root: Root, registered_model: str, parents: dict[str, URI], *, accuracy: float, reason: str) -> Decision:
    latest = registry.latest(root, registered_model)
    champion = latest.metrics["champion now"] if latest else {"test_accuracy": 0.0}
    promoted = accuracy > champion["test_accuracy"]
    metrics = dict.fromkeys(METRICS.values(), accuracy) | {"macro_f1": accuracy - 0.01}
    checkpoint = CheckpointURI(parents["checkpoint"])
    return Decision(
        number=latest.number + 1 if latest else 1,
        champion=checkpoint if promoted else latest.champion if latest else None,
        challenger=checkpoint,
        evaluation=EvaluationURI(parents["evaluation"]),
        promoted=promoted,
        reason=reason or ("it is better" if promoted else "it is not better"),
        gate={"metric": "accuracy", "minimum": 0.0, "tolerance": 0.0},
        metrics={"challenger": metrics, "champion now": metrics if promoted else champion},
    )


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
