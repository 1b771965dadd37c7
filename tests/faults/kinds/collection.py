"""Garbage collection beside a run. What the run uses stays, and what it makes again is whole."""

import os
import signal
import subprocess
import sys
from typing import Any

from storage import files, manifest
from tests.faults.case import Case, Failed
from tests.faults.history import is_struck
from tests.faults.kinds.register import kind
from tests.runs import CHECKOUT


@kind("garbage collected while a flow is frozen in promote", quick=True)
def _collected_while_frozen(case: Case) -> dict[str, Any]:
    case.begin(after="evaluation")
    run = case.start("promote", action="freeze")
    case.reaches(run, is_struck, "the flow froze")
    before = _manifests(case)
    command = [sys.executable, "-m", "storage", "gc", "--keep-days", "0", "--storage", case.root]
    env = {**os.environ, **case.harness.environment(case.root)}
    collector = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    case.send_signal(run.process.pid, signal.SIGCONT, what="the flow again")
    if collector.returncode or before - _manifests(case):
        raise Failed(f"what a live run uses was collected:\n{collector.stdout}{collector.stderr}")
    return case.expect_recovery(run)


def _manifests(case: Case) -> set[str]:
    return {entry.path for entry in files.walk(case.root) if entry.path.endswith("/" + manifest.NAME)}
