"""The summary of a run: what `--json` prints and the flow returns."""

from collections.abc import Sequence
from typing import Any

from prefect.runtime import deployment, flow_run
from prefect.states import Completed

from storage import manifest
from storage.registry import Decision
from storage.uri import FilesURI, ReportURI
from tasks.plan import Plan
from tasks.stage import Stage

NOTHING_NEW = "NothingNew"
"""Name of the state in which a deployment's run ends that found every result there already."""


def outcome(summary: dict[str, Any]) -> Any:
    """What a flow returns: `summary`, for a deployment's run that had nothing to do within a state that says so."""
    if deployment.id and all(stage["reused"] for stage in summary["stages"]):
        return Completed(name=NOTHING_NEW, message="every result of this run is there already", data=summary)
    return summary


def summarize(
    plan: Plan, files: FilesURI | None, stages: Sequence[Stage], decision: Decision, page: ReportURI
) -> dict[str, Any]:
    """One JSON document that names every URI, the metrics, the decision and what was reused."""
    raw = manifest.load(plan.raw)
    return {
        "run": str(flow_run.id) if flow_run.id else None,
        "source": {"data": plan.data_name, "notice": raw.statistics["notice"], "files": raw.statistics["sources"]},
        "uris": {
            "files": files,
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
