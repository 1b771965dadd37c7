"""Runs on one machine take turns: a waiting run names the one it waits for, and none overtakes the next in line."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage import commits
from storage.uri import CheckpointURI, DatasetURI, Root
from tasks.jobs.deadline import deadline
from tasks.jobs.spec import JobSpec, PredictSpec, PreprocessSpec
from tasks.orchestration.stage import stage
from tasks.resources import machine, machine_locks
from tasks.runners.session import LockingRunner
from tests.jobs import raw
from tests.runs import CHECKOUT, await_that

pytestmark = pytest.mark.timeout(120)

_PROGRAM = """
import os, sys
os.sched_getaffinity = lambda process: {0, 1}
from tasks.resources import machine_locks
with machine_locks.held("amber", gpus=[], on_wait=print, is_done=lambda: False):
    print("turn", flush=True)
    sys.stdin.read()
"""
"""A run on a machine with two cores."""
_OWN = threading.local()
"""The number of cores that a thread uses."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's locks, on a machine with two cores."""
    monkeypatch.setenv(machine_locks.LOCK_DIR, str(tmp_path / "locks"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(machine_locks, "_POLL_S", 0.01)
    return tmp_path / "locks"


class Run(threading.Thread):
    """A run on some cores and GPUs, which keeps its turn until `end`."""

    def __init__(self, owner: str, *gpus: str, num_cores: int = 2) -> None:
        super().__init__(daemon=True)
        self.owner, self.gpus, self.num_cores = owner, gpus, num_cores
        self.said: list[str] = []
        self.ended = threading.Event()

    def run(self) -> None:
        def waits(text: str) -> None:
            self.said.append(f"waiting: {text}")

        _OWN.cores = self.num_cores
        with machine_locks.held(self.owner, gpus=self.gpus, on_wait=waits, is_done=lambda: False):
            self.said.append("turn")
            self.ended.wait()

    def says(self, line: str) -> None:
        """Wait until it has said `line`."""
        await_that(lambda: line in self.said, limit_s=30, interval_s=0.01)

    def end(self) -> None:
        """Have it give its turn back."""
        self.ended.set()
        self.join()


Start = Callable[..., Run]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(machine, "cores", lambda: getattr(_OWN, "cores", 2))
    runs: list[Run] = []

    def started(owner: str, *gpus: str, num_cores: int = 2) -> Run:
        runs.append(Run(owner, *gpus, num_cores=num_cores))
        runs[-1].start()
        return runs[-1]

    yield started
    for run in runs:
        run.ended.set()
    for run in runs:
        run.join()


def test_a_run_waits_for_another_says_for_whom_and_begins_as_soon_as_that_one_is_killed(start: Start) -> None:
    program = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(program, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout and first.stdout.readline() == "turn\n"
        second = start("birch")
        second.says("waiting: amber is computing on this machine")
        third = start("cedar")
        third.says("waiting: birch is next in line on this machine")
        first.kill()
    second.says("turn")
    third.says("waiting: birch is computing on this machine")
    assert "turn" not in third.said, "two had their turn at once"
    second.end()
    third.says("turn")


def test_runs_that_ask_for_a_part_of_the_cores_share_them_and_a_later_one_does_not_overtake(start: Start) -> None:
    halves = start("amber", num_cores=1), start("birch", num_cores=1)
    for half in halves:
        half.says("turn")
    whole = start("cedar")
    whole.says("waiting: amber is computing and birch is computing on this machine")
    halves[0].end()
    whole.says("waiting: birch is computing on this machine")
    late = start("dogwood", num_cores=1)
    late.says("waiting: cedar is next in line on this machine")
    halves[1].end()
    whole.says("turn")
    late.says("waiting: cedar is computing on this machine")


def test_a_gpu_is_used_by_one_run_at_a_time(start: Start) -> None:
    first = start("amber", "0", num_cores=1)
    first.says("turn")
    second = start("birch", "0", "1", num_cores=1)
    second.says("waiting: amber is computing on this machine")
    first.end()
    second.says("turn")
    start("cedar", "2", num_cores=1).says("turn")


class Recorder:
    """Runner that only notes which stages it ran, and whether the locks were free meanwhile."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.seen: list[str] = []

    def run(self, stage: str, spec: JobSpec) -> None:
        self.stages.append(stage)

        def note(text: str) -> None:
            self.seen.append(text)
            raise KeyboardInterrupt

        with (
            contextlib.suppress(KeyboardInterrupt),
            machine_locks.held("another", gpus=[], on_wait=note, is_done=lambda: False),
        ):
            self.seen.append("free")


@pytest.fixture
def predict(tmp_path: Path) -> PredictSpec:
    root = Root(str(tmp_path / "root"))
    model, rows = (root.child(f"{kind}/small-0123456789ab") for kind in ("checkpoints", "datasets/prepared"))
    return raw.to_predict(root, CheckpointURI(model), DatasetURI(rows))


def test_a_run_keeps_its_turn_from_the_first_stage_that_computes_to_its_end(predict: PredictSpec) -> None:
    recorder = Recorder()
    moves = PreprocessSpec(
        storage=predict.storage, deadline_s=60, source=predict.source, target=predict.source, parameters={}
    )
    with contextlib.ExitStack() as locks:
        runner = LockingRunner(recorder, locks)
        for stage, spec in (("preprocess", moves), ("predict", predict), ("preprocess", moves)):
            runner.run(stage, spec)
    runs = f"a run (pid {os.getpid()}, model-0123456789ab in {predict.storage}) is computing on this machine"
    assert recorder.seen == ["free", runs, runs]
    with machine_locks.held("another", gpus=[], on_wait=pytest.fail, is_done=lambda: False):
        pass


def test_the_wait_counts_for_no_deadline_and_ends_once_another_run_has_made_the_result(
    predict: PredictSpec, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine_locks, "_LOOK_S", 0.05)
    start("amber").says("turn")
    commit = threading.Timer(
        0.5, lambda: commits.commit(predict.target, kind="predictions", parents={}, parameters={}, listed=[])
    )
    commit.start()
    recorder = Recorder()
    short = predict.model_copy(update={"deadline_s": 0.1})
    with caplog.at_level("INFO"), contextlib.ExitStack() as locks, stage("predict", predict.target):
        LockingRunner(recorder, locks).run("predict", short)
    assert not recorder.stages, "there was nothing left to do"
    assert "waiting: amber is computing on this machine" in caplog.messages


@pytest.mark.parametrize("trouble", ["writable by others", "a file"])
def test_a_folder_that_cannot_be_used_costs_a_warning_and_not_the_run(
    trouble: str,
    tmp_path: Path,
    predict: PredictSpec,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = tmp_path / "private"
    if trouble == "a file":
        place.touch()
        monkeypatch.setenv(machine_locks.LOCK_DIR, str(place))
    else:
        place.mkdir()
        place.chmod(0o777)
        monkeypatch.delenv(machine_locks.LOCK_DIR)
        monkeypatch.setattr(machine_locks, "_PRIVATE", str(place))
    ran: list[str] = []

    class Runner:
        def run(self, stage: str, spec: JobSpec) -> None:
            ran.append(stage)

    with contextlib.ExitStack() as locks:
        runner = LockingRunner(Runner(), locks)
        runner.run("predict", predict)
        runner.run("predict", predict)
    assert ran == ["predict"] * 2
    (message,) = caplog.messages
    assert message.startswith("runs on this machine do not take turns: ") and str(place) in message
    assert trouble == "a file" or not list(place.iterdir())


def test_the_locks_of_another_user_can_be_taken_in_a_folder_for_all(folder: Path) -> None:
    """As in /tmp: files that somebody else created must be open to all, and are not created again."""
    with machine_locks.held("amber", gpus=[], on_wait=pytest.fail, is_done=lambda: False):
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666}
        assert (folder / "core-0.lock").read_text() == "amber"
    with deadline(5), machine_locks.held("birch", gpus=[], on_wait=pytest.fail, is_done=lambda: False):
        assert (folder / "core-0.lock").read_text() == "birch"
