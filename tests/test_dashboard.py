"""The dashboard of a local Ray, queried over HTTP during a run."""

import contextlib
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.runs import Run, await_that

pytestmark = pytest.mark.slow

_RUN = ["--recipe", "mnist-sample-resnet18", "--set", "epochs=1", "--dashboard", "--json"]
_ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)\. The token is in (\S+)")


def test_dashboard_has_the_training_with_its_workers_and_stacks_and_the_datasets_of_preprocess(tmp_path: Path) -> None:
    run = Run(*_RUN, "--storage", str(tmp_path / "root"), folder=tmp_path)
    found: list[dict[str, Any]] = []

    def has_workers() -> bool:
        with contextlib.suppress(OSError, TypeError):
            found[:] = json.loads(_ask(run, "/api/train/v2/runs/v1"))["train_runs"]
        return any(attempt["workers"] for training in found for attempt in training["attempts"])

    await_that(lambda: has_workers() or run.process.poll() is not None, interval_s=0.5)
    pids = {pid for pid, command in run.processes().items() if command.startswith("ray::RayTrainWorker")}
    jobs = json.loads(_ask(run, "/api/jobs/"))
    job = next(job["job_id"] for job in jobs if "tasks.jobs preprocess" in job["entrypoint"])
    datasets = json.loads(_ask(run, f"/api/data/datasets/{job}"))["datasets"]
    (attempt,) = found[0]["attempts"]
    (worker,) = attempt["workers"]
    assert (worker["world_rank"], {worker["pid"]}) == (0, pids)
    traceback = _ask(run, f"/worker/traceback?pid={worker['pid']}&node_id={worker['node_id']}")
    assert "ray::RayTrainWorker" in traceback
    assert {dataset["state"] for dataset in datasets} == {"FINISHED"}
    assert max(dataset["total_rows"] for dataset in datasets) == 7000
    run.process.terminate()
    run.process.wait()


def _ask(run: Run, path: str) -> str:
    """What the dashboard of `run` answers, once its log names the address."""
    named = _ADDRESS.search(run.log.read_text())
    if named is None:
        raise OSError("there is no dashboard yet")
    token = Path(named[2]).read_text().strip()
    request = urllib.request.Request(named[1] + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())
