"""Backfill, as a script: run the flow on several versions of a source's data, oldest first."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works from anywhere, installed or not

if TYPE_CHECKING:
    from prefect import Flow


def _flow_of(request: dict[str, Any], plan: Any = None) -> "Flow[..., Any]":
    from flows import pipeline

    return pipeline.flow_of(request, plan)


if __name__ == "__main__":
    from flows.cli import app

    raise SystemExit(app.main(_flow_of, "backfill"))
