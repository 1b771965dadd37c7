"""The pipeline as it is operated: a real server, a real worker, and what befalls them."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from storage import manifest, registry
from storage.uri import URI, Root
from tests.operated import CANARY, Hook, Operated, webhook
from tests.runs import CHECKOUT, Run, await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def received() -> Iterator[Hook]:
    """The address of a webhook, and what it is told."""
    with webhook() as hook:
        yield hook


@pytest.fixture(scope="module")
def operated(received: Hook, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """A server in line with prefect.yaml; each test starts the worker it needs."""
    server = Operated(tmp_path_factory.mktemp("operated"), webhook=received[0])
    try:
        server.deploy()
        yield server
    finally:
        server.end()


@pytest.fixture(autouse=True)
def no_worker_is_left(operated: Operated) -> Iterator[None]:
    """No test finds the worker of another."""
    yield
    operated.end_worker()


def test_the_schedule_is_on_the_server_with_its_time_zone(operated: Operated) -> None:
    schedule = operated.deployment("mnist/train")["schedules"][0]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("0 3 * * *", "Europe/Berlin")
    assert schedule["active"]


def test_deploying_the_same_file_again_changes_nothing(operated: Operated) -> None:
    before = {name: operated.deployment(name)["id"] for name in operated.deployments()}
    assert "nothing to change" in operated.deploy()
    assert {name: operated.deployment(name)["id"] for name in operated.deployments()} == before
    assert len(operated.deployment("mnist/train")["schedules"]) == 1


def test_what_somebody_paused_on_the_server_is_active_again_after_deploying(operated: Operated) -> None:
    deployment = operated.deployment("mnist/train")
    schedule = deployment["schedules"][0]["id"]
    operated.api("PATCH", f"/deployments/{deployment['id']}/schedules/{schedule}", {"active": False})
    (automation,) = [one for one in operated.api("POST", "/automations/filter", {}) if "died" in one["name"]]
    operated.api("PATCH", f"/automations/{automation['id']}", {"enabled": False})
    told = operated.deploy()
    assert operated.deployment("mnist/train")["schedules"][0]["active"]
    assert operated.api("GET", f"/automations/{automation['id']}")["enabled"]
    assert "set schedule nightly" in told
    assert "nothing to change" in operated.deploy()


def test_what_leaves_the_file_leaves_the_server_and_nothing_else_does(operated: Operated, tmp_path: Path) -> None:
    checkout = _copy_of_checkout(tmp_path / "copy")
    content = yaml.safe_load((checkout / "prefect.yaml").read_text())
    del content["deployments"][0]["schedules"]
    content["deployments"] = [one for one in content["deployments"] if one["name"] != "batch"]
    (checkout / "prefect.yaml").write_text(yaml.safe_dump(content))
    foreign = operated.deployment("mnist/smoke")
    body = {"name": "of-somebody-else", "flow_id": foreign["flow_id"], "tags": ["other"]}
    operated.api("POST", "/deployments/", body)
    told = operated.deploy(checkout)
    try:
        assert operated.deployment("mnist/train")["schedules"] == []
        ours = {"mnist/train", "mnist/smoke", "fashion-mnist/train", "cifar10/train", "images/train"}
        assert operated.deployments() == ours | {"mnist/of-somebody-else"}
        assert "removed deployment predict/batch" in told
        assert "removed schedule nightly" in told
    finally:
        operated.deploy()
    assert "predict/batch" in operated.deployments()


def test_missed_slots_run_once_and_a_later_run_finds_nothing_new(operated: Operated, received: Hook) -> None:
    missed = [operated.start("mnist/smoke", minutes_ago=minutes) for minutes in (180, 120, 60)]
    operated.start_worker()
    assert sorted(operated.await_end(*missed)) == ["Cancelled", "Cancelled", "Completed"]
    run = next(one for one in missed if operated.state(one)["name"] == "Completed")
    _check_what_a_run_shows(operated, run)
    await_that(lambda: any(one["event"] == "promoted" for one in received[1]), limit_s=60)
    assert "NothingNew" in operated.prefect("deployment", "run", "mnist/smoke", "--watch")
    assert CANARY not in str(received[1])


def _check_what_a_run_shows(operated: Operated, run: str) -> None:
    root = Root(operated.env["PIPELINE_STORAGE"])
    champion = registry.champion(root, "mnist-sample")
    assert champion is not None
    artifacts = operated.artifacts(run)
    expected = {"summary", "training-images", "history", "per-class", "confusion", "report", "ray-dashboard"}
    assert expected <= artifacts.keys()
    assert "(data:image/png;base64," in artifacts["training-images"]
    assert {artifacts[f"{stage}-progress"] for stage in ("preprocess", "train", "predict")} == {100}
    report = next(Path(root).glob("reports/*/index.html"))
    assert str(report) in artifacts["report"]
    accuracy = manifest.load(next(URI(str(uri)) for uri in Path(root).glob("evaluations/*")))
    assert f"{accuracy.statistics['test_accuracy']:.4f}" in artifacts["summary"]
    assert any(line.startswith("[rank 0] ") for line in operated.log(run)), "nothing that a Ray worker printed"
    steps = [line for line in operated.log(run) if line.startswith("epoch 1/1, steps")]
    assert steps == sorted(steps, key=lambda line: int(line.split()[3].split("/")[0])) != []
    assert CANARY not in str(operated.log(run)) + str(artifacts)


def test_runs_that_are_killed_or_cancelled_are_seen_to_end_and_the_next_one_goes_on(
    operated: Operated, received: Hook, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"precision": "fp32", "epochs": 2}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    undisturbed = Run(*words, "--source", "sample", "--json", "--storage", str(tmp_path / "whole"), folder=tmp_path)
    expected = undisturbed.result()
    root = tmp_path / "root"
    start: dict[str, Any] = {"storage": str(root), "settings": settings}
    operated.start_worker()

    flow_killed = operated.start("mnist/smoke", **start)
    await_that(lambda: list(root.glob("runs/**/epoch-0001/checkpoint.json")))
    os.kill(operated.engine(flow_killed), signal.SIGKILL)
    assert operated.await_end(flow_killed, limit_s=60) == ["Crashed"]
    await_that(lambda: not operated.processes(flow_killed), limit_s=30)

    cancelled = operated.start("mnist/smoke", **start)
    await_that(lambda: _trains(operated, cancelled))
    operated.api("POST", f"/flow_runs/{cancelled}/set_state", {"state": {"type": "CANCELLING"}})
    assert operated.await_end(cancelled, limit_s=60) == ["Cancelled"]
    await_that(lambda: not operated.processes(cancelled), limit_s=30)
    assert registry.champion(Root(str(root)), "mnist-sample") is None

    both_killed = operated.start("mnist/smoke", **start)
    await_that(lambda: _trains(operated, both_killed))
    engine = operated.engine(both_killed)
    operated.kill_worker()
    os.kill(engine, signal.SIGKILL)
    assert operated.await_end(both_killed, limit_s=240) == ["Crashed"]
    assert "no heartbeat" in operated.state(both_killed)["message"]

    operated.start_worker()
    last = operated.start("mnist/smoke", **start)
    assert operated.await_end(last) == ["Completed"]
    assert operated.says(last, "epoch 2/2, steps")
    for run in (cancelled, both_killed, last):
        assert not operated.says(run, "epoch 1/2, steps"), "training began again instead of going on"
    assert _weights(root) == _weights(Path(tmp_path / "whole"))
    assert registry.champion(Root(str(root)), "mnist-sample") is not None
    assert Path(expected["uris"]["checkpoint"]).name == next(root.glob("checkpoints/*")).name
    crashed = {one["run_id"] for one in received[1] if one["event"] == "run-crashed"}
    assert {flow_killed, both_killed} <= crashed
    assert CANARY not in str(received[1])


def _trains(operated: Operated, run: str) -> bool:
    """Whether a worker of Ray Train is alive in `run`."""
    return any("ray::RayTrainWorker" in command for command in operated.processes(run).values())


def _weights(root: Path) -> str:
    """The name of the one committed file of weights, which holds a digest of it."""
    (found,) = root.glob("checkpoints/*/weights-*")
    return found.name


def _copy_of_checkout(folder: Path) -> Path:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=CHECKOUT, capture_output=True)
    for name in listed.stdout.decode().splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, folder / name)
    return folder


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tags": []}, "needs the tag 'mnist-pipeline'"),
        ({"schedules": [{"cron": "0 3 * * *"}]}, "every schedule needs a slug"),
        ({"schedules": [{"slug": "odd", "cron": "at three"}]}, "schedule 'odd' cannot be read"),
        ({"work_pool": None}, "needs work_pool"),
    ],
)
def test_a_wrong_file_is_refused_by_name_before_anything_changes(
    operated: Operated, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    checkout = _copy_of_checkout(tmp_path / "copy")
    content = yaml.safe_load((checkout / "prefect.yaml").read_text())
    changed = content["deployments"][0] | change
    content["deployments"][0] = {name: value for name, value in changed.items() if value is not None}
    (checkout / "prefect.yaml").write_text(yaml.safe_dump(content))
    words = [sys.executable, str(checkout / "flows" / "deployments.py")]
    answer = subprocess.run(words, env=operated.env, capture_output=True, text=True)
    assert answer.returncode == 2
    assert named in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
