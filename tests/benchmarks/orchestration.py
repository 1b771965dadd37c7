"""The orchestration arms, in one process with a warm server: the flow, and the same stages called as functions."""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.pipeline import mnist
from flows.server.temporary_server import own_server
from tasks.learning import recipes
from tasks.orchestration.stage import using
from tasks.planning import make_plan
from tasks.runners.session import session
from tests import ingested
from tests.benchmarks import data
from tests.benchmarks.arm import serve


def functions(storage: str, recipe: str, settings: dict[str, Any], source: str) -> None:
    """What the flow does, without Prefect."""
    planned = recipes.override(recipes.load(recipe), settings)
    plan = make_plan.make_plan(storage=storage, recipe=planned, mirror=[data.address(source)])
    with (
        using(plan.root, plan.uses),
        session(plan.root, wanted=plan.needs_ray, workers=None) as cluster,
    ):
        ingested.run(plan, cluster)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.orchestration", description=__doc__)
    parser.add_argument("--mirror", required=True)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--settings", type=json.loads, default={}, help="what is changed of it")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    request = {"recipe": options.recipe, "settings": options.settings}

    def timed(work: Callable[[str], Any]) -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=options.folder) as storage:
            started = time.perf_counter()
            work(storage)
            return {"seconds": time.perf_counter() - started}

    os.environ.setdefault("PREFECT_HOME", str(options.folder / "prefect"))
    with own_server():
        serve(
            {
                "flow": lambda: timed(
                    lambda storage: mnist(**request, storage=storage, mirror=[data.address(options.mirror)])
                ),
                "functions": lambda: timed(lambda storage: functions(storage, **request, source=options.mirror)),
            }
        )


if __name__ == "__main__":
    main()
