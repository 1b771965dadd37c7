"""Deadlines interrupt blocking calls; the watchdog ends a worker that makes no progress, and no other."""

import subprocess
import sys
import threading
import time

import pytest

from tasks.jobs.deadline import DeadlineExceeded, deadline, run_in_thread
from tasks.jobs.train.worker import EXIT_CODE
from tests.runs import CHECKOUT


def test_a_later_deadline_does_not_put_off_the_one_around_it() -> None:
    with (
        pytest.raises(DeadlineExceeded, match="not done within 0 s; use a longer --stage-t"),
        deadline(0.2),
        deadline(60),
    ):
        time.sleep(5)
    with pytest.raises(DeadlineExceeded, match="not done within 0 s"), deadline(60), deadline(0.2):
        time.sleep(5)


def test_a_deadline_that_somebody_swallowed_comes_again() -> None:
    swallowed = 0
    with pytest.raises(DeadlineExceeded), deadline(0.05, again_s=0.05):
        try:
            time.sleep(60)
        except Exception:
            swallowed += 1
        time.sleep(60)
    assert swallowed == 1


def test_a_deadline_ends_work_that_is_done_aside() -> None:
    ended = threading.Event()
    with pytest.raises(DeadlineExceeded), deadline(0.1):
        run_in_thread(lambda: ended.wait(60), give_up=ended.set)
    assert ended.is_set()


_WORKER = """
import time
from tasks.jobs.train.worker import watched

def stuck():
    time.sleep(60)

with watched(limit_s=4):
    pass
with watched(limit_s=4) as beat:
    for _ in range(45):
        time.sleep(0.1)
        beat()
print("alive", flush=True)
with watched(limit_s=1):
    stuck()
"""


@pytest.mark.slow
def test_only_a_worker_without_progress_ends_and_prints_where_it_stood() -> None:
    program = [sys.executable, "-c", _WORKER]
    ended = subprocess.run(program, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == EXIT_CODE, ended.stderr
    before, after = ended.stdout.split("alive")  # one block was over, the other made progress
    assert not before and "no progress for 1 s" in after and "in stuck" in ended.stderr
