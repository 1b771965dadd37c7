"""Schedules and queues of a real server on SQLite: what runs by itself, waits, is deleted."""

import contextlib
import re
import sqlite3
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from storage import manifest, registry
from storage.uri import URI, Root
from tasks.runners.child import Child
from tests import s3, schedules
from tests.image_folder import encoded, write_folder
from tests.prefect_system import CANARY, Hook, PrefectSystem, free_port
from tests.runs import CHECKOUT, await_that, copy_of_checkout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_missed_slots_of_a_schedule_train_once_and_runs_that_a_person_starts_meanwhile_are_queued(
    prefect_system: PrefectSystem, received: Hook
) -> None:
    missed = _missed_slots(prefect_system, "mnist/smoke", hours=3)
    prefect_system.start_worker()
    await_that(lambda: any(prefect_system.starts(slot) for slot in missed), limit_s=120, interval_s=0.5)
    queued = prefect_system.start("mnist/smoke")
    watched = prefect_system.prefect("deployment", "run", "mnist/smoke", "--watch")
    assert sorted(prefect_system.await_end(*missed)) == ["Completed", "NothingNew", "NothingNew"]
    run = next(slot for slot in missed if prefect_system.state(slot)["name"] == "Completed")
    _check_what_a_run_shows(prefect_system, run)
    assert prefect_system.await_end(queued, limit_s=120) == ["NothingNew"] and "NothingNew" in watched
    assert "AwaitingConcurrencySlot" in prefect_system.states(queued)
    await_that(lambda: any(one["event"] == "promoted" for one in received[1]), limit_s=60)
    assert CANARY not in str(received[1])


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
        "deployment mnist/smoke, run mnist-sample-resnet18 epochs=1 learning_rate="
    )
    artifacts = prefect_system.artifacts(run)
    expected = {"summary", "training-images", "history", "per-class", "confusion", "report"}
    progress = {f"{stage}-progress" for stage in ("preprocess", "train", "predict")}
    keys = {f"mnist-sample-{name}" for name in expected | progress}
    keys.add("mnist-sample-ingest-progress")
    assert artifacts.keys() - {None} == keys, "of its own source"
    artifacts = {key.removeprefix("mnist-sample-"): artifacts[key] for key in keys}
    assert "(data:image/png;base64," in artifacts["training-images"]
    assert {artifacts[name] for name in progress} == {100}
    report = next(Path(root).glob("reports/*/index.html"))
    assert str(report) in artifacts["report"]
    accuracy = manifest.load(next(URI(str(uri)) for uri in Path(root).glob("evaluations/*")))
    assert f"{accuracy.statistics['test_accuracy']:.4f}" in artifacts["summary"]
    assert any(line.startswith("[rank 0] ") for line in prefect_system.log(run)), "nothing that a Ray worker printed"
    assert len([line for line in prefect_system.log(run) if line.startswith("epoch 1/1: train loss ")]) == 1
    steps = [line for line in prefect_system.log(run) if line.startswith("epoch 1/1, steps")]
    assert steps == sorted(steps, key=lambda line: int(line.split()[3].split("/")[0])) != []
    assert CANARY not in str(prefect_system.log(run)) + str(artifacts)


def test_on_sqlite_a_cron_and_an_interval_start_runs_by_themselves_that_end_well(
    prefect_system: PrefectSystem, tmp_path: Path
) -> None:
    checkout = copy_of_checkout(tmp_path / "copy")
    schedules.add_scheduled(checkout, write_folder(tmp_path / "photos"))
    prefect_system.start_worker()
    prefect_system.deploy(checkout)
    try:
        schedules.check_both_ran(prefect_system)
    finally:
        prefect_system.deploy()


def test_added_files_start_a_training_by_a_look_and_by_a_buckets_event_and_quiet_looks_leave_one_run(
    prefect_system: PrefectSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, pictures = copy_of_checkout(tmp_path / "copy"), write_folder(tmp_path / "pictures")
    with _notifying_bucket(prefect_system, tmp_path, monkeypatch) as server:
        client, data = server.client(), f"s3://{server.bucket}/pictures"
        for path in filter(Path.is_file, pictures.rglob("*")):
            key = f"pictures/{path.relative_to(pictures)}"
            client.put_object(Bucket=server.bucket, Key=key, Body=path.read_bytes())
        schedules.uncomment_watch(checkout, data)
        prefect_system.start_worker()
        prefect_system.deploy(checkout)
        try:
            assert prefect_system.deployment("images/train")["schedules"][0]["active"]
            look = await_that(lambda: _looks(prefect_system, "Started"), limit_s=180, interval_s=1)[0]
            assert look["created_by"]["type"] == "SCHEDULE"
            (first,) = _trainings(prefect_system)
            assert prefect_system.await_end(first, limit_s=300) == ["Completed"]
            quiet = await_that(lambda: _looks(prefect_system, "NothingNew"), limit_s=180, interval_s=1)[0]
            await_that(lambda: _looks(prefect_system, "NothingNew") not in ([], [quiet]), limit_s=180)
            assert len(_looks(prefect_system, "NothingNew")) == 1 and len(_trainings(prefect_system)) == 1
            watch = prefect_system.deployment("images/watch")
            place = f"/deployments/{watch['id']}/schedules/{watch['schedules'][0]['id']}"
            prefect_system.api("PATCH", place, {"active": False})
            for number in (7, 8, 9):
                key = f"pictures/train/pears/late {number}.png"
                client.put_object(Bucket=server.bucket, Key=key, Body=encoded(number, 0))
            await_that(lambda: len(_looks(prefect_system, "Started")) == 2, limit_s=180, interval_s=1)
            looks = _looks(prefect_system, "Started")
            assert sorted(look["created_by"]["type"] for look in looks) == ["AUTOMATION", "SCHEDULE"]
            (second,) = {*_trainings(prefect_system)} - {first}
            assert prefect_system.await_end(second, limit_s=300) == ["Completed"]
        finally:
            prefect_system.deploy()
    assert "images/watch" not in prefect_system.deployments()
    automations = prefect_system.api("POST", "/automations/filter", {})
    assert not [automation for automation in automations if "watch" in automation["name"]]


@contextlib.contextmanager
def _notifying_bucket(
    prefect_system: PrefectSystem, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[s3.Server]:
    """An S3 server that posts each change to the forwarder of docs/operating.md; the worker's storage credentials."""
    (script,) = re.findall(r"```python\n(# forward.py.*?)```", (CHECKOUT / "docs/operating.md").read_text(), re.DOTALL)
    port = free_port()
    (folder / "forward.py").write_text(script.replace("8099", str(port)))
    forwarder = Child([sys.executable, str(folder / "forward.py")], env=prefect_system.env)
    config = folder / "home" / ".seaweedfs" / "notification.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[notification.webhook]\nenabled = true\nendpoint = "http://127.0.0.1:{port}"\n')
    monkeypatch.setenv("HOME", str(folder / "home"))
    try:
        with s3.serve(folder / "s3") as server:
            monkeypatch.setattr(prefect_system, "env", prefect_system.env | server.environment())
            yield server
    finally:
        prefect_system.end_worker()
        forwarder.end()


def _looks(prefect_system: PrefectSystem, state: str) -> list[dict[str, Any]]:
    wanted = {"deployments": {"name": {"any_": ["watch"]}}, "flow_runs": {"state": {"name": {"any_": [state]}}}}
    looks: list[dict[str, Any]] = prefect_system.api("POST", "/flow_runs/filter", wanted)
    return looks


def _trainings(prefect_system: PrefectSystem) -> list[str]:
    """The runs of images/train that a look has started."""
    wanted = {"deployments": {"id": {"any_": [prefect_system.deployment("images/train")["id"]]}}}
    runs = prefect_system.api("POST", "/flow_runs/filter", wanted)
    return [run["id"] for run in runs if str(run["idempotency_key"]).startswith("files ")]


def test_old_runs_and_events_leave_the_database(prefect_system: PrefectSystem) -> None:
    old, new = _add_run_and_event(prefect_system, days_ago=91), _add_run_and_event(prefect_system, days_ago=1)
    await_that(lambda: _held(prefect_system) & {*old, *new} == {*new}, limit_s=120, interval_s=0.5)


def _add_run_and_event(prefect_system: PrefectSystem, *, days_ago: int) -> tuple[str, str]:
    """The ids of a run that ended then, and of an event of that time."""
    at = datetime.now(UTC) - timedelta(days=days_ago)
    event = str(uuid.uuid4())
    body = {"id": event, "event": "aged", "occurred": at.isoformat(), "resource": {"prefect.resource.id": "aged"}}
    prefect_system.api("POST", "/events", [body])
    body = {"flow_id": prefect_system.deployment("mnist/smoke")["flow_id"], "state": {"type": "COMPLETED"}}
    run = prefect_system.api("POST", "/flow_runs/", body)["id"]
    database = sqlite3.connect(Path(prefect_system.env["PREFECT_HOME"], "prefect.db"), timeout=30)
    with contextlib.closing(database), database:
        aged = database.execute("UPDATE flow_run SET end_time = ? WHERE id = ?", (f"{at:%Y-%m-%d %H:%M:%S.%f}", run))
        assert aged.rowcount == 1
    return run, event


def _held(prefect_system: PrefectSystem) -> set[str]:
    """The ids of what the server still shows."""
    ever = {"filter": {"occurred": {"since": "2000-01-01T00:00:00Z"}, "event": {"name": ["aged"]}}}
    events = prefect_system.api("POST", "/events/filter", ever)["events"]
    runs = prefect_system.api("POST", "/flow_runs/filter", {"sort": "END_TIME_DESC"})
    return {one["id"] for one in events + runs}
