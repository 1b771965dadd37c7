"""The watchdog ends a worker that makes no progress, and no other."""

import subprocess
import sys

import pytest

from tasks.jobs.train.worker import EXIT_CODE
from tests.runs import CHECKOUT

_WORKER = """
import time
from tasks.jobs.train.worker import watched

def stuck():
    time.sleep(60)

def slow_but_alive(beat):
    for _ in range(20):
        time.sleep(0.1)
        beat()

with watched(limit_s=1) as beat:
    {work}
"""


@pytest.mark.parametrize(("work", "code"), [("stuck()", EXIT_CODE), ("slow_but_alive(beat)", 0)])
def test_only_a_worker_without_progress_ends_and_says_where_it_stood(work: str, code: int) -> None:
    program = [sys.executable, "-c", _WORKER.format(work=work)]
    ended = subprocess.run(program, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stderr
    assert ("in stuck" in ended.stderr) == ("no progress for 1 s" in ended.stdout) == (code == EXIT_CODE)


def test_after_its_block_it_watches_no_more() -> None:
    program = [sys.executable, "-c", _WORKER.format(work="pass") + "\ntime.sleep(2.5)"]
    assert subprocess.run(program, cwd=CHECKOUT, timeout=60).returncode == 0
