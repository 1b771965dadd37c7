"""Garbage collection beside a run. What the run uses stays."""

import signal
import time
from typing import Any

from storage import files, manifest
from storage.admin.gc import Garbage
from storage.uri import Root
from tests.faults.case import Case, Failed
from tests.faults.history import is_struck
from tests.faults.kinds.register import kind

_LATER_S = 2 * 24 * 3600


@kind("garbage collected while a flow is frozen in promote", quick=True)
def _collected_while_frozen(case: Case) -> dict[str, Any]:
    case.begin(after="evaluation")
    run = case.start("promote", action="freeze")
    case.reaches(run, is_struck, "the flow froze")
    before = _manifests(case)
    garbage = Garbage(Root(case.root), keep_days=1, now=time.time() + _LATER_S)
    removals = list(garbage.remove(garbage.find()))
    case.send_signal(run.process.pid, signal.SIGCONT, what="the flow again")
    if lost := before - _manifests(case):
        raise Failed(f"gc deleted what a live run uses: {sorted(lost)}, {[removal.uri for removal in removals]}")
    return case.expect_recovery(run)


def _manifests(case: Case) -> set[str]:
    return {entry.path for entry in files.walk(case.root) if entry.path.endswith("/" + manifest.NAME)}
