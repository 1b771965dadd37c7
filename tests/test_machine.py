"""The share of a machine that a run uses, and two runs at the same time."""

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tasks.resources import capacity, machine, machine_locks
from tests.faults import injection
from tests.runs import Run, await_that


def test_cores_that_there_are_not_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    most = len(os.sched_getaffinity(0))
    for wrong in ("0", "-1", "many", str(most + 1)):
        monkeypatch.setenv(machine.CORES, wrong)
        with pytest.raises(ValueError, match=f"--cores .PIPELINE_CORES. must be 1 to {most} on this .* got '{wrong}'"):
            capacity.check_workers(None)
    monkeypatch.setenv(machine.CORES, "1")
    assert capacity.check_workers(None).startswith("local, 1 core")
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    with pytest.raises(ValueError, match=r"cannot be used with RAY_ADDRESS; .* cpus_per_worker"):
        capacity.check_workers(None)
    assert capacity.check_workers(0), "that one does without the cluster"


@pytest.mark.parametrize(
    ("told", "found"),
    [("0,1", ["0", "1"]), ("GPU-4f2a, GPU-77", ["GPU-4f2a", "GPU-77"]), ("", []), ("-1", []), (None, ["0", "1"])],
)
def test_a_run_uses_the_gpus_that_it_can_use(
    told: str | None, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bus in ("0000:04:00.0", "0000:05:00.0"):
        (tmp_path / bus).mkdir()
    monkeypatch.setattr(machine, "_DEVICES", (str(tmp_path), "*"))
    assert machine.gpus({} if told is None else {"CUDA_VISIBLE_DEVICES": told}) == found


def test_gpus_of_a_container_are_those_that_it_may_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _show_gpus(tmp_path, monkeypatch, opened=2, driver=8, wsl=1)
    assert machine.gpus({}) == ["0", "1"]
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}) == ["0", "1"], "there are no more"


@pytest.mark.parametrize(("shown", "number"), [({"driver": 8}, 8), ({"wsl": 1}, 1)])
@pytest.mark.parametrize("library", ["libcuda.so.1", None])
def test_gpus_that_nobody_has_opened_count_only_where_the_library_of_cuda_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: dict[str, int], number: int, library: str | None
) -> None:
    _show_gpus(tmp_path, monkeypatch, **shown)
    monkeypatch.setattr("ctypes.util.find_library", {"cuda": library}.get)
    assert len(machine.gpus({})) == (number if library else 0)


def _show_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch, **numbers: int) -> None:
    for kind, number in numbers.items():
        for gpu in range(number):
            (folder / kind / str(gpu)).mkdir(parents=True)
    monkeypatch.setattr(machine, "_DEVICES", (str(folder / "opened"), "*"))
    monkeypatch.setattr(machine, "_HINTS", [(str(folder / "driver"), "*"), (str(folder / "wsl"), "*")])


@pytest.fixture
def one_core() -> Iterator[None]:
    """A machine with one core: a training is as long as it is wherever else there is work."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("one_core")
def test_two_runs_at_once_train_one_after_the_other_to_the_bytes_of_one_alone(tmp_path: Path) -> None:
    settings = ("model=small-cnn", "precision=fp32", "epochs=2", "minimum=0")
    arguments = ["--source", "sample", "--json", *(word for setting in settings for word in ("--set", setting))]

    def start(name: str, *more: str) -> Run:
        storage = str(tmp_path / name / "root")
        env = injection.environment(tmp_path / name / "history.jsonl")
        (tmp_path / name).mkdir()
        return Run(*arguments, *more, "--storage", storage, folder=tmp_path / name, env=env)

    with machine_locks.held("the test", gpus=machine.gpus(), on_wait=pytest.fail, is_done=lambda: False):
        runs = {"with-ray": start("with-ray"), "without-ray": start("without-ray", "--workers", "0")}
        for run in runs.values():
            await_that(partial(_waits_or_has_ended, run))
    together = {name: run.result()["uris"]["checkpoint"] for name, run in runs.items()}
    steps = {name: _steps(tmp_path / name / "history.jsonl") for name in runs}
    first, second = sorted(steps, key=lambda name: steps[name][0])
    assert steps[first][-1] < steps[second][0], "they trained at the same time"
    waited = rf"waiting: run \S.* .pid {runs[first].process.pid}, .* is computing on this machine"
    assert re.search(waited, runs[second].log.read_text())
    alone = start("alone", "--workers", "0").result()["uris"]["checkpoint"]
    assert len({_weights(uri) for uri in (alone, *together.values())}) == 1


def _steps(history: Path) -> list[float]:
    """When each step of a training was over."""
    events: list[dict[str, Any]] = [json.loads(line) for line in history.read_text().splitlines()]
    return [event["s"] for event in events if event["point"] == "step"]


def _waits_or_has_ended(run: Run) -> bool:
    return run.says("waiting: ") or run.process.poll() is not None


def _weights(uri: str) -> str:
    listed = json.loads((Path(uri) / "_manifest.json").read_text())["files"]
    return next(str(file["sha256"]) for file in listed if file["path"].startswith("weights"))
