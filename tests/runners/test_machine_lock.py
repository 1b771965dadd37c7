"""Runs on one machine take turns."""

import contextlib
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.kinds import CheckpointURI, DatasetURI
from storage.uri import Root
from tasks.jobs.spec import JobSpec
from tasks.orchestration.stage import step
from tasks.resources.needs import Limits
from tasks.runners.session import LockingRunner
from tasks.stages import Predict
from tests import committed
from tests.jobs import raw
from tests.runs import CHECKOUT

pytestmark = pytest.mark.timeout(120)

_PROGRAM = """
import contextlib, sys
from types import SimpleNamespace
from storage.uri import URI
from tasks.runners.session import LockingRunner
from tests import committed
with contextlib.ExitStack() as locks:
    print("begun", flush=True)
    runner = SimpleNamespace(run=lambda spec: print("turn", flush=True))
    LockingRunner(runner, locks).run(SimpleNamespace(stage=SimpleNamespace(target=URI("/nowhere"))))
    sys.stdin.read()
"""
WAITING = "waiting: another run is computing on this machine; `fuser "


class Recorder:
    """Runner that notes the stages it ran."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def run(self, spec: JobSpec[Any]) -> None:
        self.stages.append(spec.stage.kind.stage)


@pytest.fixture
def predict(tmp_path: Path) -> JobSpec[Predict]:
    root = Root(str(tmp_path / "root"))
    model, rows = (root.child(f"{kind}/small-0123456789ab") for kind in ("checkpoints", "datasets/prepared"))
    stage = raw.to_predict(root, CheckpointURI(model), DatasetURI(rows))
    return JobSpec(stage=stage, limits=Limits(stage_s=0.1))


@contextlib.contextmanager
def another_run() -> Iterator[subprocess.Popen[str]]:
    """A process that gets the lock, once it is free."""
    program = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(program, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "begun\n"
        yield process
        process.kill()


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.usefixtures("integration")
def test_a_run_waits_beyond_its_deadline_until_another_is_killed_and_makes_nothing_that_was_made_meanwhile(
    predict: JobSpec[Predict], caplog: pytest.LogCaptureFixture, is_made: bool
) -> None:
    recorder = Recorder()
    with another_run() as other, caplog.at_level("INFO"), contextlib.ExitStack() as locks:
        assert other.stdout and other.stdout.readline() == "turn\n"

        def end() -> None:
            if is_made:
                committed.commit(predict.stage.target, "predictions")
            other.kill()

        threading.Timer(0.5, end).start()
        with step("predict", predict.stage.target) as waited:
            LockingRunner(recorder, locks).run(predict)
    assert waited.seconds < 0.4  # the wait is not the stage's
    assert recorder.stages == [] if is_made else ["predict"]
    assert any(message.startswith(WAITING) for message in caplog.messages)


@pytest.mark.usefixtures("integration")
def test_a_run_keeps_its_turn_from_its_first_job_to_its_end(predict: JobSpec[Predict]) -> None:
    with contextlib.ExitStack() as locks:
        runner = LockingRunner(Recorder(), locks)
        runner.run(predict)
        with another_run() as other:
            assert other.stdout
            ready, _, _ = select.select([other.stdout], [], [], 1)
            assert not ready, "another run had its turn, too"
            runner.run(predict)
            locks.close()
            assert other.stdout.readline() == "turn\n"


def test_a_lock_that_cannot_be_used_costs_a_warning_and_not_the_run(
    predict: JobSpec[Predict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    Path(tmp_path / "missing").touch()
    recorder = Recorder()
    with contextlib.ExitStack() as locks:
        runner = LockingRunner(recorder, locks)
        for _ in range(2):
            runner.run(predict)
    assert recorder.stages == ["predict"] * 2
    (message,) = caplog.messages
    assert message.startswith("runs on this machine do not take turns: ") and "missing" in message
