"""The summary of a run: what `--json` prints and the flow returns."""

from collections.abc import Sequence
from typing import Any

from prefect.runtime import flow_run

from storage import manifest
from storage.registry import Decision
from storage.uri import ReportURI
from tasks.plan import Plan
from tasks.stage import Stage


def summarize(plan: Plan, stages: Sequence[Stage], decision: Decision, page: ReportURI) -> dict[str, Any]:
    """One JSON document that names every URI, the metrics, the decision and what was reused."""
    raw = manifest.load(plan.raw)
    return {
        "run": str(flow_run.id) if flow_run.id else None,
        "source": {"data": plan.recipe.data, "notice": raw.statistics["notice"], "files": raw.statistics["sources"]},
        "uris": {
            "raw": plan.raw,
            "prepared": plan.prepared,
            "checkpoint": plan.checkpoint,
            "evaluation": plan.evaluation,
            "predictions": plan.predictions,
            "report": page,
        },
        "metrics": {
            name: value for name, value in manifest.load(plan.evaluation).statistics.items() if name != "notice"
        },
        "promoted": decision.promoted,
        "reason": decision.reason,
        "champion": decision.champion,
        "stages": [
            {"name": stage.name, "seconds": round(stage.seconds, 3), "reused": stage.reused, "uri": stage.uri}
            for stage in stages
        ],
    }
