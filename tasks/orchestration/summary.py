"""Summary of a run, which the flow returns and `--json` prints."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from prefect import State
from prefect.context import FlowRunContext
from prefect.events import emit_event
from prefect.runtime import deployment, flow_run
from prefect.states import Completed

from storage import manifest, tables
from storage.decision import Decision
from storage.kinds import AUDIT, CHECKPOINT, EVALUATION, PREDICTIONS, RAW, FilesURI, PredictionsURI, ReportURI
from storage.manifest import JSON
from storage.statistics import RawStatistics
from storage.uri import redact_text
from tasks.comparing import drift
from tasks.jobs.preprocess.data_problems import find_data_problems
from tasks.learning.metrics import wilson
from tasks.orchestration.stage import Step
from tasks.planning.audit_request import AuditRequest
from tasks.planning.model_requests import BatchRequest
from tasks.planning.plan import Plan


def outcome(summary: dict[str, Any]) -> dict[str, Any] | State[dict[str, Any]]:
    """Return the flow's result: `summary`; of a deployment's run in a final state that says what became of it.

    `NothingNew` if it reused everything, else of a training `Promoted`, `Rejected` or `Unchanged`.
    """
    if deployment.id and all(stage["reused"] for stage in summary["stages"]):
        return Completed(name="NothingNew", message="all results of this run already exist", data=summary)
    if deployment.id and "verdict" in summary:
        return Completed(name=summary["verdict"].title(), message=summary["reason"], data=summary)
    return summary


def summarize(
    plan: Plan, files: FilesURI | None, stages: Sequence[Step], decision: Decision, page: ReportURI
) -> dict[str, Any]:
    """Build a JSON document with all URIs, the metrics, the decision and the stages with what they reused."""
    raw, evaluated = manifest.load(plan.preprocess.raw), manifest.load(plan.evaluate.target).statistics_of(EVALUATION)
    embedded = manifest.load(plan.predict.embeddings) if plan.predict.embeddings else None
    problems = find_data_problems(raw, manifest.load(plan.preprocess.target), embedded)
    images = raw.statistics_of(RAW)
    sources = [source.model_dump() | {"url": redact_text(source.url)} for source in images.sources]
    is_reused = any(stage.reused for stage in stages if stage.name == "promote")
    return {
        "run": str(flow_run.id) if flow_run.id else None,
        "source": {"data": plan.preprocess.raw.stem, "notice": images.notice, "files": sources},
        "uris": {
            "files": files,
            "raw": plan.preprocess.raw,
            "prepared": plan.preprocess.target,
            "checkpoint": plan.train.target,
            "evaluation": plan.evaluate.target,
            "predictions": plan.predict.target,
            "report": page,
        },
        "data_problems": [problem.summary for problem in problems if not (problem.is_minor or problem.is_listed)],
        "metrics": evaluated.model_dump(mode="json", exclude={"notice"}, exclude_none=True),
        "test_accuracy_interval": wilson(evaluated.test_accuracy, evaluated.num_rows),
        "promoted": decision.promoted,
        "verdict": "unchanged" if is_reused else decision.verdict,
        "reason": f"{decision.verdict} on {decision.account}" if is_reused else decision.reason,
        "difference": decision.difference.model_dump() if decision.difference else None,
        "registered_model": plan.registered_model,
        "champion": decision.champion,
        "stages": _stages_as_dicts(stages),
    }


def summarize_prediction(request: BatchRequest, predictions: PredictionsURI, stages: Sequence[Step]) -> dict[str, Any]:
    """Build a JSON document with the URIs, the rows by predicted class and without a prediction, and the stages."""
    predicted = manifest.load(predictions)
    statistics = predicted.statistics_of(PREDICTIONS)
    counts, below, above = statistics.predicted, 0, 0
    if request.min_confidence is not None or request.max_distance is not None:
        counts, below, above = _count(request, predictions)
    source = manifest.load(request.predict.dataset).statistics
    unreadable = source.unreadable if isinstance(source, RawStatistics) else ()
    return {
        "uris": {
            "checkpoint": request.predict.checkpoint,
            "dataset": request.predict.dataset,
            "predictions": predictions,
        },
        "rows": predicted.rows,
        "predicted": counts,
        "unpredicted": {"rows": statistics.unpredicted, "named": list(unreadable)},
        "below_min_confidence": below,
        "above_max_distance": above,
        "drift": None if request.no_drift else _drift(predictions, stages),
        "stages": _stages_as_dicts(stages),
    }


def _drift(predictions: PredictionsURI, stages: Sequence[Step]) -> JSON | None:
    """Compare new images with the test rows; emit an event if they differ, inside the run that has predicted them."""
    result = drift.of_new_images(predictions)
    is_new = FlowRunContext.get() is not None and not all(stage.reused for stage in stages)
    if result and result["is_drift"] and is_new:
        emit_event("pipeline.predictions.drift", resource={"prefect.resource.id": predictions}, payload=result)
    return result


def _count(request: BatchRequest, predictions: PredictionsURI) -> tuple[dict[str, int], int, int]:
    """Count the rows that keep their class, by class; those with too low a probability; those too far away."""
    distance = ["distance"] * (request.max_distance is not None)
    rows = tables.read_split(predictions, columns=["prediction", "probability", *distance])
    rows = rows.filter(pc.field("prediction").is_valid())
    near, minimum = rows, pa.scalar(request.min_confidence or 0, pa.float32())
    if distance:
        near = rows.filter(pc.field("distance") <= pa.scalar(request.max_distance, pa.float32()))
    sure = near.filter(pc.field("probability") >= minimum)
    counts = Counter(sure["prediction"].to_pylist())
    classes = manifest.load(request.predict.checkpoint).statistics_of(CHECKPOINT).model.classes
    by_class = {name: counts[number] for number, name in enumerate(classes)}
    return by_class, len(near) - len(sure), len(rows) - len(near)


def summarize_audit(
    request: AuditRequest, suspects: Sequence[dict[str, Any]], stages: Sequence[Step]
) -> dict[str, Any]:
    """Build a JSON document with the URIs, the number of images, the suspects, worst first, and the stages."""
    uris = {"raw": request.plan.preprocess.raw, "embeddings": request.audit.embeddings}
    return {
        "uris": uris | {"audit": request.audit.target},
        "rows": manifest.load(request.audit.target).statistics_of(AUDIT).rows,
        "suspects": list(suspects),
        "stages": _stages_as_dicts(stages),
    }


def _stages_as_dicts(stages: Sequence[Step]) -> list[dict[str, Any]]:
    return [
        {"name": stage.name, "seconds": round(stage.seconds, 3), "reused": stage.reused, "uri": stage.uri}
        for stage in stages
    ]
