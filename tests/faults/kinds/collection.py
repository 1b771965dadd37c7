"""Garbage collection beside a run. What the run uses stays, and what it makes again is whole."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from storage import files, manifest
from storage.uri import URI
from tests.faults import injection, proxy
from tests.faults.case import Case, Failed
from tests.faults.history import is_struck
from tests.faults.kinds.register import kind
from tests.faults.proxy import RequestFault
from tests.runs import CHECKOUT

_TTL_S = 60.0
"""How long the lease of gc lasts here: half as long as usual, so that a run waits less for it to lapse."""
_METHODS = ("POST", "GET", "HEAD", "PUT", "DELETE")
"""Of requests to S3; gc deletes by POST."""
_OUTAGE_S = 100.0
"""Longer than that, and shorter than a request is retried."""


@kind("garbage collected while a flow is frozen in promote", quick=True)
def _collected_while_frozen(case: Case) -> dict[str, Any]:
    case.begin(after="evaluation")
    run = case.start("promote", action="freeze")
    case.reaches(run, is_struck, "the flow froze")
    before = _manifests(case)
    with _collector(case, {}) as collector:
        output, _ = collector.communicate()
    case.send_signal(run.process.pid, signal.SIGCONT, what="the flow again")
    if collector.returncode or before - _manifests(case):
        raise Failed(f"what a live run uses was collected:\n{output}")
    return case.expect_recovery(run)


@kind("garbage collection frozen as it deletes, thawed after a run made the same results")
def _collector_frozen(case: Case) -> dict[str, Any]:
    case.begin(after="predictions")  # without a champion nothing is needed
    fault = injection.fault("collect", action="freeze", once=case.once)
    with _collector(case, case.injection_env(fault)) as collector:
        case.until(lambda: case.history.has(is_struck), "gc froze")
        result = case.expect_recovery(case.start())
        case.send_signal(collector.pid, signal.SIGCONT, what="gc again")
        collector.communicate()
    _check_kept(result)
    return result


@kind("S3: 503 to garbage collection for 100 s, while a run makes the same results")
def _collector_refused(case: Case) -> dict[str, Any]:
    case.begin(after="predictions", on_s3=True)
    with proxy.serve(case.harness.server.endpoint) as spoiling:  # of gc alone
        refusals = [RequestFault(fault="503", method=method, part="", times=sys.maxsize) for method in _METHODS]
        spoiling.pending = [RequestFault(fault="lost", method="POST", part=""), refusals[0]]
        with _collector(case, {"AWS_ENDPOINT_URL": spoiling.endpoint}) as collector:
            case.until(lambda: spoiling.injected, "gc had deleted something and did not hear of it", interval_s=0.01)
            until, spoiling.pending = time.monotonic() + _OUTAGE_S, refusals
            case.once.touch()
            run = case.start()
            case.until(lambda: time.monotonic() > until, "S3 answered gc again")
            spoiling.pending = []
            result = case.expect_recovery(run)
            collector.communicate()
    _check_kept(result)
    return result


@contextlib.contextmanager
def _collector(case: Case, env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Garbage collection of everything that is not needed, in a process that ends with the block."""
    program = f"from storage import in_use, __main__; in_use._COLLECTOR_TTL_S = {_TTL_S}; exit(__main__.main())"
    command = [sys.executable, "-c", program, "gc", "--keep-days", "0", "--storage", case.root]
    env = {**os.environ, **case.harness.environment(case.root), **env}
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=CHECKOUT, env=env, **output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _check_kept(result: dict[str, Any]) -> None:
    for name in ("checkpoint", "predictions", "evaluation"):
        manifest.verify(URI(result["uris"][name]))


def _manifests(case: Case) -> set[str]:
    return {entry.path for entry in files.walk(case.root) if entry.path.endswith("/" + manifest.NAME)}
