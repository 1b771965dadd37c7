"""The watchdog ends a worker that makes no progress, and no other."""

import subprocess
import sys

from tasks.jobs.train.worker import EXIT_CODE
from tests.runs import CHECKOUT

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


def test_only_a_worker_without_progress_ends_and_says_where_it_stood() -> None:
    program = [sys.executable, "-c", _WORKER]
    ended = subprocess.run(program, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == EXIT_CODE, ended.stderr
    before, after = ended.stdout.split("alive")  # one block was over, the other made progress
    assert not before and "no progress for 1 s" in after and "in stuck" in ended.stderr
