"""Stopped and killed at random, processes that contend for the same names lose nothing and damage nothing.

`CONTENTION_SEED` and `CONTENTION_STEPS` search longer; the kernel decides how processes interleave, so a seed that
failed may have to be tried again.
"""

import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from storage import manifest, registry
from storage.uri import URI, Root
from tests.concurrency import worker
from tests.concurrency.worker import MODEL, Spec
from tests.faults.proxy import Fault, Proxy, serve
from tests.s3 import Server

SEED = int(os.environ.get("CONTENTION_SEED", "17"))
STEPS = {"local": 1200, "s3": 400}
WORKERS = 4
STOP_S = {"local": 0.25, "s3": 1.0}
"""Usual time for which a process is stopped."""
_FAULTS: dict[str, tuple[Fault, ...]] = {
    "GET": ("500", "503", "reset", "truncated", "lost"),
    "PUT": ("500", "503", "reset", "lost", "lost", "lost"),
    "HEAD": ("503", "reset"),
    "POST": ("500", "reset", "lost"),
    "DELETE": ("500", "reset", "lost"),
}
_SPOILT = 0.02
"""Share of the requests to S3 that get a fault."""


@pytest.mark.slow
def test_contending_processes_lose_and_damage_nothing(
    root: Root, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kind = "s3" if root.is_s3 else "local"
    server = request.getfixturevalue("s3") if root.is_s3 else None
    steps = int(os.environ.get("CONTENTION_STEPS", STEPS[kind])) // WORKERS
    spec = Spec(root=root, log=tmp_path, seed=SEED, steps=steps, environment={})
    with _spoiling(server) as (environment, injected):
        logs = [tmp_path / f"{number}.jsonl" for number in range(WORKERS)]
        strikes = _run([dataclasses.replace(spec, log=log, environment=environment) for log in logs], STOP_S[kind])
    print(f"seed {SEED}: {strikes}, {Counter(injected)}")
    outcomes = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    assert [outcome["error"] for outcome in outcomes if "error" in outcome] == []
    _check_commits(outcomes)
    _check_registry(root, outcomes)
    assert strikes["stopped"] and strikes["killed"] and (kind == "local" or "lost" in injected)
    assert sum("begun" in outcome for outcome in outcomes) == steps * WORKERS


def _check_commits(outcomes: list[dict[str, Any]]) -> None:
    """Whoever committed or read a dataset got the same manifest, that of one of the committers, and it is whole."""
    digests: dict[str, set[str]] = {}
    for outcome in outcomes:
        if "dataset" in outcome:
            digests.setdefault(outcome["dataset"], set()).add(outcome["digest"])
    assert len(digests) > WORKERS
    for uri, seen in digests.items():
        made = manifest.verify(URI(uri))
        assert seen == {worker.digest(made)}
        assert manifest.read_file(URI(uri), made.files[0]).decode() == made.parameters["by"]


def _check_registry(root: Root, outcomes: list[dict[str, Any]]) -> None:
    """Every decision that was acknowledged or read is there under its number, and none that was refused."""
    history = registry.history(root, MODEL)
    assert [decision.number for decision in history] == list(range(1, len(history) + 1))
    reasons = [decision.reason for decision in history]
    assert len(set(reasons)) == len(reasons) > WORKERS
    for outcome in outcomes:
        if "decision" in outcome:
            assert reasons[outcome["decision"] - 1] == outcome["reason"]
        assert outcome.get("refused") not in reasons


def _run(specs: list[Spec], stop_s: float) -> Counter[str]:
    """Run the workers to their ends; stop them and let them go on, or kill and replace them, at random."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([worker.__name__, "botocore.session"])
    strikes: Counter[str] = Counter()
    chance = random.Random(SEED)

    def start(spec: Spec) -> ForkServerProcess:
        process = context.Process(target=worker.work, args=(spec,), daemon=True)
        process.start()
        return process

    working = {spec.log: start(spec) for spec in specs}
    by_log = {spec.log: spec for spec in specs}
    try:
        while working:
            time.sleep(chance.uniform(0.0, stop_s / WORKERS))
            log, process = chance.choice(list(working.items()))
            if process.exitcode is not None:
                assert process.exitcode == 0
                del working[log]
            elif chance.random() < 0.12:
                process.kill()
                process.join()
                strikes["killed"] += 1
                working[log] = start(by_log[log])
            else:
                with _stopped(process):
                    strikes["stopped"] += 1
                    longest_s = 2 * stop_s if chance.random() < 0.12 else 0.2
                    time.sleep(chance.uniform(0.01, longest_s))
    finally:
        for process in working.values():
            process.kill()
    return strikes


@contextlib.contextmanager
def _stopped(process: ForkServerProcess) -> Iterator[None]:
    assert process.pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)


class _RandomFaults(Proxy):
    def __init__(self, server: str) -> None:
        super().__init__(server)
        self._chance = random.Random(SEED)

    def fault_of(self, method: str, path: str) -> Fault | None:
        """Return the fault for the request that just came in: for most, none."""
        with self._taking:
            if self._chance.random() >= _SPOILT:
                return None
            fault = self._chance.choice(_FAULTS[method])
            self.injected.append((fault, method, path))
            return fault


@contextlib.contextmanager
def _spoiling(server: Server | None) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield the variables that send a worker to a proxy before `server`, and a list for the faults it will inject."""
    injected: list[str] = []
    if not server:
        yield {}, injected
        return
    with serve(server.endpoint, _RandomFaults(server.endpoint)) as proxy:
        yield server.environment() | {"AWS_ENDPOINT_URL": proxy.endpoint}, injected
        injected += [fault for fault, _, _ in proxy.injected]
