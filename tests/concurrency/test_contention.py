"""Stopped and killed at random, processes that contend for the same names lose nothing and damage nothing.

`CONTENTION_SEED` and `CONTENTION_STEPS` search longer; the kernel decides how processes interleave, so a seed that
failed may have to be tried again.
"""

import contextlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from storage import manifest, registry
from storage.uri import URI, Root
from tests.concurrency import worker
from tests.concurrency.worker import MODEL, Spec

SEED = int(os.environ.get("CONTENTION_SEED", "17"))
STEPS = {"local": 1200, "s3": 400}
WORKERS = 4
STOP_S = {"local": 0.25, "s3": 1.0}
"""Usual time for which a process is stopped."""


@pytest.mark.slow
def test_contending_processes_lose_and_damage_nothing(
    each_root: Root, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kind = "s3" if each_root.is_s3 else "local"
    environment = request.getfixturevalue("s3").environment() if each_root.is_s3 else {}
    steps = int(os.environ.get("CONTENTION_STEPS", STEPS[kind])) // WORKERS
    logs = [tmp_path / f"{number}.jsonl" for number in range(WORKERS)]
    specs = [Spec(root=each_root, log=log, seed=SEED, steps=steps, environment=environment) for log in logs]
    strikes = _run(specs, STOP_S[kind])
    print(f"seed {SEED}: {strikes}")
    outcomes = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    assert [outcome["error"] for outcome in outcomes if "error" in outcome] == []
    _check_commits(outcomes)
    _check_registry(each_root, outcomes)
    assert strikes["stopped"] and strikes["killed"]
    assert sum("begun" in outcome for outcome in outcomes) == steps * WORKERS


def _check_commits(outcomes: list[dict[str, Any]]) -> None:
    """Whoever committed or read a dataset got the same manifest, that of one of the committers, and it is whole."""
    digests: dict[str, set[str]] = {}
    for outcome in outcomes:
        if "dataset" in outcome:
            digests.setdefault(outcome["dataset"], set()).add(outcome["digest"])
    assert len(digests) > WORKERS
    for uri, seen in digests.items():
        committed = manifest.verify(URI(uri))
        assert seen == {worker.digest(committed)}
        assert manifest.read_file(URI(uri), committed.files[0]).decode() == committed.parameters["by"]


def _check_registry(root: Root, outcomes: list[dict[str, Any]]) -> None:
    """Every decision that was acknowledged or read is there under its number, and none that was refused."""
    history = registry.history(root, MODEL)
    assert [decision.number for decision in history] == list(range(1, len(history) + 1))
    reasons = [decision.reason for decision in history]
    assert len(set(reasons)) == len(reasons) > WORKERS
    for outcome in outcomes:
        for number, reason in outcome.get("decisions", {}).items():
            assert reasons[int(number) - 1] == reason
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

    working = {spec: start(spec) for spec in specs}
    try:
        while working:
            time.sleep(chance.uniform(0.0, stop_s / WORKERS))
            spec, process = chance.choice(list(working.items()))
            if process.exitcode is not None:
                assert process.exitcode == 0
                del working[spec]
            elif chance.random() < 0.12:
                process.kill()
                process.join()
                strikes["killed"] += 1
                working[spec] = start(spec)
            else:
                strikes["stopped"] += 1
                _stop_for(process, chance.uniform(0.01, 2 * stop_s if chance.random() < 0.12 else 0.2))
    finally:
        for process in working.values():
            process.kill()
    return strikes


def _stop_for(process: ForkServerProcess, seconds: float) -> None:
    assert process.pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGCONT)
