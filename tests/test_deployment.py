"""The pipeline in operation: a real server, a real worker, and their failures."""

from pathlib import Path

import pytest

from storage import registry
from storage.uri import Root
from tests.prefect_system import PrefectSystem
from tests.runs import await_that, find, kill_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_deploying_the_same_file_again_changes_nothing(prefect_system: PrefectSystem) -> None:
    before = {name: prefect_system.deployment(name)["id"] for name in prefect_system.deployments()}
    assert prefect_system.deploy().startswith("deployed: cifar10/train, images/train, ")
    assert {name: prefect_system.deployment(name)["id"] for name in prefect_system.deployments()} == before
    (schedule,) = prefect_system.deployment("mnist/train")["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("0 3 * * *", "Europe/Berlin")
    assert schedule["active"]
    planned = {"deployments": {"name": {"any_": ["train"]}}, "flow_runs": {"state": {"name": {"any_": ["Scheduled"]}}}}
    await_that(lambda: prefect_system.api("POST", "/flow_runs/filter", planned), limit_s=120, interval_s=0.5)


def test_wrong_parameters_are_refused_when_the_run_is_created(prefect_system: PrefectSystem) -> None:
    assert "'workers'" in prefect_system.refusal("mnist/train", workers="many")
    assert "'data' is a required property" in prefect_system.refusal("predict/batch")


def test_what_only_the_run_can_know_is_refused_in_one_line(prefect_system: PrefectSystem, tmp_path: Path) -> None:
    prefect_system.start_worker()
    run = prefect_system.start("mnist/smoke", data=str(tmp_path / "nothing"), storage=str(tmp_path / "root"))
    assert prefect_system.await_end(run, limit_s=120) == ["Failed"]
    await_that(lambda: prefect_system.says(run, "Finished in state"), limit_s=60)
    log = prefect_system.log(run)
    (line,) = [
        line for line in log if line.startswith("Finished in state Failed(") and line[26:].startswith("--data: ")
    ]
    assert len(line.splitlines()) == 1
    assert "Traceback" not in str(log)


def test_a_run_that_crashed_is_restarted_and_one_that_was_cancelled_ends_with_all_its_processes(
    prefect_system: PrefectSystem, tmp_path: Path
) -> None:
    prefect_system.start_worker()
    run = prefect_system.start("mnist/smoke", storage=str(tmp_path), settings={"model": "small-cnn", "epochs": 12})
    # Prefect may handle a crash at the moment of the start 15 minutes later (docs/internals/decisions.md).
    await_that(lambda: prefect_system.says(run, "download started"), interval_s=0.5)
    kill_process(prefect_system.engine(run))
    prefect_system.await_state(run, "Crashed", limit_s=60)
    await_that(lambda: find(tmp_path, "runs/**/epoch-0001/checkpoint.json"))
    prefect_system.api("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    assert prefect_system.await_end(run, limit_s=60) == ["Cancelled"]
    assert prefect_system.starts(run) == 2
    await_that(lambda: not prefect_system.processes(run), limit_s=30)
    assert registry.champion(Root(str(tmp_path)), "mnist-sample") is None
