"""The dashboard of a local Ray, queried over HTTP during a run."""

import contextlib
import dataclasses
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.runs import Run, await_that

pytestmark = pytest.mark.slow

_RUN = ["--recipe", "mnist-sample-resnet18", "--mirror", "sample", "--set", "epochs=1", "--dashboard", "--json"]
_ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)\. The token is in (\S+)")


@dataclasses.dataclass(frozen=True)
class Shown:
    """What the dashboard knew while the workers trained."""

    trainings: list[dict[str, Any]]
    datasets: list[dict[str, Any]]
    """Of the job of `preprocess`."""
    traceback: str
    """Of the training worker."""
    pids: set[int]
    """Of the training workers that there were."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """A run of one epoch, watched until its workers are there, which then ends well."""
    folder = tmp_path_factory.mktemp("dashboard")
    run = Run(*_RUN, "--storage", str(folder / "root"), folder=folder)
    found: list[dict[str, Any]] = []

    def has_workers() -> bool:
        with contextlib.suppress(OSError, TypeError):
            found[:] = json.loads(_ask(run, "/api/train/v2/runs/v1"))["train_runs"]
        return any(attempt["workers"] for training in found for attempt in training["attempts"])

    await_that(lambda: has_workers() or run.process.poll() is not None, interval_s=0.5)
    pids = {pid for pid, command in run.processes().items() if command.startswith("ray::RayTrainWorker")}
    jobs = json.loads(_ask(run, "/api/jobs/"))
    job = next(job["job_id"] for job in jobs if "tasks.jobs.preprocess" in job["entrypoint"])
    datasets = json.loads(_ask(run, f"/api/data/datasets/{job}"))["datasets"]
    worker = found[0]["attempts"][0]["workers"][0]
    traceback = _ask(run, f"/worker/traceback?pid={worker['pid']}&node_id={worker['node_id']}")
    assert run.wait() == 0
    return Shown(found, datasets, traceback, pids)


def test_the_training_is_there_with_its_workers(shown: Shown) -> None:
    (training,) = shown.trainings
    assert (
        training["run_settings"]["run_config"]["storage_path"].rpartition("/")[2].startswith("mnist-sample-resnet18-")
    )
    (attempt,) = training["attempts"]
    assert [worker["world_rank"] for worker in attempt["workers"]] == [0]
    assert {worker["pid"] for worker in attempt["workers"]} == shown.pids


def test_the_datasets_of_preprocess_are_there_with_their_rows(shown: Shown) -> None:
    assert {dataset["state"] for dataset in shown.datasets} == {"FINISHED"}
    assert max(dataset["total_rows"] for dataset in shown.datasets) == 7000


def test_stacks_of_a_training_worker_can_be_read(shown: Shown) -> None:
    assert "ray::RayTrainWorker" in shown.traceback


def _ask(run: Run, path: str) -> str:
    """What the dashboard of `run` answers, once its log names the address."""
    named = _ADDRESS.search(run.log.read_text())
    if named is None:
        raise OSError("there is no dashboard yet")
    token = Path(named[2]).read_text().strip()
    request = urllib.request.Request(named[1] + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())
