"""Schedules and queues of a real server on SQLite: what runs by itself, and what waits."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from storage import manifest, registry
from storage.kinds import EVALUATION
from storage.uri import URI, Root
from tests.image_folder import write_folder
from tests.prefect_system import CANARY, PrefectSystem
from tests.runs import CHECKOUT, await_that, copy_of_checkout

SMALL = {"epochs": 1, "model": "small-cnn", "minimum": 0}
"""A training of seconds."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_missed_slots_of_a_schedule_train_once_and_runs_that_a_person_starts_meanwhile_are_queued(
    prefect_system: PrefectSystem,
) -> None:
    missed = _missed_slots(prefect_system, "mnist/smoke", hours=2)
    prefect_system.start_worker()
    await_that(lambda: any(prefect_system.starts(slot) for slot in missed), limit_s=120, interval_s=0.5)
    queued = prefect_system.start("mnist/smoke")
    assert sorted(prefect_system.await_end(*missed)) == ["NothingNew", "Promoted"]
    run = next(slot for slot in missed if prefect_system.state(slot)["name"] == "Promoted")
    _check_what_a_run_shows(prefect_system, run)
    assert prefect_system.await_end(queued, limit_s=120) == ["NothingNew"]
    assert "AwaitingConcurrencySlot" in prefect_system.states(queued)
    (event,) = await_that(lambda: prefect_system.events("pipeline.model.promoted"), limit_s=60)
    roles = {related["prefect.resource.role"] for related in event["related"]}
    assert event["resource"]["prefect.resource.name"] == "mnist-sample" and {"flow-run", "deployment"} <= roles
    assert event["payload"]["number"] == 1 and CANARY not in str(event)


def _missed_slots(prefect_system: PrefectSystem, name: str, *, hours: int) -> list[str]:
    """The runs that an hourly schedule of deployment `name` planned for the last hours; it is removed again."""
    path = f"/deployments/{prefect_system.deployment(name)['id']}"
    hourly = [{"schedule": {"cron": "0 * * * *"}, "active": True}]
    (schedule,) = prefect_system.api("POST", f"{path}/schedules", hourly)
    now = datetime.now(UTC)
    body = {"start_time": (now - timedelta(hours=hours)).isoformat(), "end_time": now.isoformat(), "min_runs": hours}
    prefect_system.api("POST", f"{path}/schedule", body)
    prefect_system.api("PATCH", f"{path}/schedules/{schedule['id']}", {"active": False})
    runs = prefect_system.api("POST", "/flow_runs/filter", {"deployments": {"name": {"any_": [name.split("/")[1]]}}})
    return [run["id"] for run in runs if run["auto_scheduled"] and run["expected_start_time"] < now.isoformat()]


def _check_what_a_run_shows(prefect_system: PrefectSystem, run: str) -> None:
    root = Root(prefect_system.env["PIPELINE_STORAGE"])
    champion = registry.champion(root, "mnist-sample")
    assert champion is not None
    decision = registry.latest(root, "mnist-sample")
    assert decision is not None and str(decision.author).startswith(
        "deployment mnist/smoke, run mnist-sample-resnet18 epochs=1"
    )
    artifacts = prefect_system.artifacts(run)
    (summary,) = artifacts.values()
    assert artifacts.keys() == {"mnist-sample-summary"}, "of its own source"
    report = next(Path(root).glob("reports/*/index.html"))
    assert str(report) in summary
    accuracy = manifest.load(next(URI(str(uri)) for uri in Path(root).glob("evaluations/*")))
    assert f"{accuracy.statistics_of(EVALUATION).test_accuracy:.4f}" in summary
    assert any(line.startswith("(RayTrainWorker pid=") for line in prefect_system.log(run)), (
        "nothing that a Ray worker printed"
    )
    assert len([line for line in prefect_system.log(run) if line.startswith("epoch 1/1: train loss ")]) == 1
    steps = [line for line in prefect_system.log(run) if line.startswith("epoch 1/1, steps")]
    assert steps == sorted(steps, key=lambda line: int(line.split()[3].split("/")[0])) != []
    assert CANARY not in str(prefect_system.log(run)) + str(artifacts)


def test_a_promotion_starts_the_prediction_of_the_documentation(prefect_system: PrefectSystem, tmp_path: Path) -> None:
    page = (CHECKOUT / "docs/retrain.md").read_text()
    (block,) = re.findall(r"```yaml\n(  - name: new-photos.*?)```", page, re.DOTALL)
    block = block.replace("s3://bucket/new-photos", str(write_folder(tmp_path / "new")))
    block = re.sub("photos$", "mnist-sample", block, flags=re.MULTILINE)
    checkout, storage = copy_of_checkout(tmp_path / "copy"), str(tmp_path / "root")
    block = block.replace("    parameters:\n", f"    parameters:\n      storage: {storage}\n      workers: 0\n")
    (checkout / "deployments.yaml").write_text(f"deployments:\n{block}")
    prefect_system.start_worker()
    prefect_system.deploy(checkout)
    run = prefect_system.start("mnist/smoke", storage=storage, settings=SMALL, workers=0)
    assert prefect_system.await_end(run) == ["Promoted"]
    wanted = {"deployments": {"name": {"any_": ["new-photos"]}}}
    (started,) = await_that(lambda: prefect_system.api("POST", "/flow_runs/filter", wanted), limit_s=60)
    assert started["created_by"]["type"] == "AUTOMATION"
    assert prefect_system.await_end(started["id"]) == ["Completed"], prefect_system.log(started["id"])
