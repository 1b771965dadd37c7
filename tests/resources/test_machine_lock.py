"""Runs on one machine take turns, and a waiting run names the one it waits for."""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import commits
from storage.uri import CheckpointURI, DatasetURI, Root
from tasks.jobs.spec import JobSpec, PredictSpec
from tasks.orchestration.stage import stage
from tasks.resources import machine_lock
from tasks.runners.session import LockingRunner
from tests.jobs import raw
from tests.runs import CHECKOUT, await_that

pytestmark = pytest.mark.timeout(120)

_PROGRAM = """
import sys
from tasks.resources import machine_lock
with machine_lock.held("amber", on_wait=print):
    print("turn", flush=True)
    sys.stdin.read()
"""


class Recorder:
    """Runner that notes the stages it ran, and whose turn it was meanwhile."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.owners: list[str] = []

    def run(self, stage: str, spec: JobSpec) -> None:
        self.stages.append(stage)

        def note(owner: str) -> None:
            self.owners.append(owner)
            raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt), machine_lock.held("another", on_wait=note):
            pytest.fail("another run had its turn too")


@pytest.fixture
def predict(tmp_path: Path) -> PredictSpec:
    root = Root(str(tmp_path / "root"))
    model, rows = (root.child(f"{kind}/small-0123456789ab") for kind in ("checkpoints", "datasets/prepared"))
    return raw.to_predict(root, CheckpointURI(model), DatasetURI(rows))


@pytest.fixture
def amber() -> Iterator[subprocess.Popen[str]]:
    """A process of another run that has its turn."""
    program = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(program, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "turn\n"
        yield process
        process.kill()


def test_a_run_waits_for_another_says_for_whom_and_begins_as_soon_as_that_one_is_killed(
    amber: subprocess.Popen[str],
) -> None:
    messages: list[str] = []

    def take_turn() -> None:
        with machine_lock.held("birch", on_wait=messages.append):
            messages.append("turn")

    waiting = threading.Thread(target=take_turn, daemon=True)
    waiting.start()
    await_that(lambda: messages, limit_s=30)
    assert messages == ["amber"]
    amber.kill()
    waiting.join(30)
    assert messages == ["amber", "turn"]


def test_a_run_keeps_its_turn_from_its_first_job_to_its_end(predict: PredictSpec) -> None:
    recorder = Recorder()
    with contextlib.ExitStack() as locks:
        runner = LockingRunner(recorder, locks)
        for name in ("preprocess", "predict"):
            runner.run(name, predict)
    assert recorder.stages == ["preprocess", "predict"]
    assert recorder.owners == [f"a run (pid {os.getpid()}, model-0123456789ab in {predict.storage})"] * 2
    with machine_lock.held("another", on_wait=pytest.fail):
        pass


def test_the_wait_counts_for_no_deadline_and_a_result_that_another_run_made_meanwhile_is_not_made_again(
    predict: PredictSpec, amber: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    def commit() -> None:
        commits.commit(predict.target, kind="predictions", parents={}, parameters={}, listed=[])
        amber.kill()

    threading.Timer(0.5, commit).start()
    recorder = Recorder()
    short = predict.model_copy(update={"deadline_s": 0.1})
    with caplog.at_level("INFO"), contextlib.ExitStack() as locks, stage("predict", predict.target):
        LockingRunner(recorder, locks).run("predict", short)
    assert not recorder.stages, "there was nothing left to do"
    assert "waiting: amber is computing on this machine" in caplog.messages


def test_a_lock_that_cannot_be_used_costs_a_warning_and_not_the_run(
    predict: PredictSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    Path(tmp_path / "missing").touch()
    stages: list[str] = []

    class Runner:
        def run(self, stage: str, spec: JobSpec) -> None:
            stages.append(stage)

    with contextlib.ExitStack() as locks:
        runner = LockingRunner(Runner(), locks)
        runner.run("predict", predict)
        runner.run("predict", predict)
    assert stages == ["predict"] * 2
    (message,) = caplog.messages
    assert message.startswith("runs on this machine do not take turns: ") and "missing" in message
