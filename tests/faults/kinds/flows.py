"""Faults of the flow itself. The same command resumes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from storage import files, manifest, registry
from storage.uri import Root
from tasks.orchestration import announce
from tests.faults.case import Case, Failed
from tests.faults.history import Event, checkpoint_of, is_struck, step, written
from tests.faults.kinds.register import kind
from tests.runs import CHECKOUT

_TOLD_S = 30.0
"""Within which Prefect's server shows an event that it was handed."""


@kind("flow killed in preprocess", stage="preprocess", after="raw", mid=written("/train/part-"))
@kind("flow killed in train", quick=True, stage="train", after="prepared", mid=checkpoint_of(1))
@kind("flow killed in predict", stage="predict", after="checkpoint", mid=written("/predictions/"))
@kind("flow killed in evaluate", stage="evaluate", after="predictions")
@kind("flow killed in report", stage="report", after="promotion")
def _killed(case: Case, *, stage: str, after: str, mid: Callable[[Event], bool] | None = None) -> dict[str, Any]:
    """As the stage begins or, where there is work to watch for, in the middle of it."""
    case.begin(after=after)
    if mid is None or case.random.random() < 0.3:
        case.run(stage)
        return case.finish()
    run = case.start()
    case.reaches(run, mid, f"{stage} was under way")
    case.kill_flow(run)
    result = case.finish()
    return case.expect_resumed_at_epoch_2(result) if stage == "train" else result


@kind("flow killed in promote")
def _killed_in_promote(case: Case) -> dict[str, Any]:
    case.begin(after="evaluation")
    case.run(*case.random.choice([("promote", ""), ("write", "/registry/"), ("written", "/registry/")]))
    result = case.finish()
    case.expect_decisions(1)
    return result


@kind("flow killed between decision and event")
def _killed_before_event(case: Case) -> dict[str, Any]:
    case.begin(after="evaluation")
    case.run("announce")
    (entry,) = case.paths("registry/*/*.json")
    decision = registry.latest(Root(case.root), entry.parent.name)
    assert decision is not None
    event = str(announce.event_id(entry.parent.name, decision))
    if case.harness.events(event):
        raise Failed("the event was sent before the fault")
    result = case.finish()
    if case.until(lambda: case.harness.events(event), "an event reports the promotion", limit_s=_TOLD_S) != 1:
        raise Failed("several events report one promotion")
    return result


@kind("flow with --refresh killed after its decision")
def _refresh_killed_after_its_decision(case: Case) -> dict[str, Any]:
    case.begin(after="promotion")
    case.options = ("--refresh",)
    case.run("report", "/reports/")
    result = case.finish()
    case.expect_decisions(2)
    return result


@kind("flow gets SIGTERM")
def _terminated(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    run = case.start()
    case.reaches(run, step, "training began")
    case.send_signal(run.process.pid, signal.SIGTERM, what="flow")
    started = time.time()
    case.wait(run)
    case.until(lambda: not run.processes(), "everything ended")
    case.recovery_s = time.time() - started
    return case.finish()


@kind("deadline passes in a job", point="step", at="epoch 1", after="prepared", limit="1m")
@kind("deadline passes in the flow", point="evaluate", at="", after="predictions", limit="6s")
def _deadline(case: Case, *, point: str, at: str, after: str, limit: str) -> dict[str, Any]:
    case.begin(after=after)
    case.options = ("--stage-timeout", limit)
    case.expect_refusal(case.start(point, at, action="hang"), "not done within")
    case.options = ()
    return case.finish()


@kind("garbage collected while a flow is frozen in promote", quick=True)
def _collected_while_frozen(case: Case) -> dict[str, Any]:
    case.begin(after="evaluation")
    run = case.start("promote", action="freeze")
    case.reaches(run, is_struck, "the flow froze")
    command = [sys.executable, "-m", "storage", "gc", "--keep-days", "0", "--storage", case.root]
    before, env = _manifests(case), os.environ | case.harness.environment(case.root)
    collector = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    case.send_signal(run.process.pid, signal.SIGCONT, what="the flow again")
    if collector.returncode or before - _manifests(case):
        raise Failed(f"what a live run uses was collected:\n{collector.stdout}{collector.stderr}")
    return case.expect_recovery(run)


def _manifests(case: Case) -> set[str]:
    return {entry.path for entry in files.walk(case.root) if entry.path.endswith("/" + manifest.NAME)}


@kind("two flows at once", quick=True)
def _two_at_once(case: Case) -> dict[str, Any]:
    case.begin(after=case.random.choice(["raw", "prepared"]))
    case.once.touch()
    runs = case.start(), case.start()
    case.until(lambda: _repeated(case) or all(run.process.poll() is not None for run in runs), "both ended")
    if repeated := _repeated(case):
        raise Failed(f"work was done twice: {repeated}")
    results = [case.expect_recovery(run) for run in runs]
    if results[0]["uris"] != results[1]["uris"]:
        raise Failed("the two came to different results")
    return results[1]


def _repeated(case: Case) -> set[str]:
    """What more than one job worked on."""
    jobs = [event["at"] for event in case.history.events() if event["point"] == "job"]
    return {target for target in jobs if jobs.count(target) > 1}


@kind("lease holder frozen beyond its lease, then thawed")
def _holder_frozen(case: Case) -> dict[str, Any]:
    case.begin(after=case.random.choice(["prepared", "checkpoint"]))
    first = case.start("job", action="freeze")
    case.reaches(first, is_struck, "the holder froze")
    holder = next(event["pid"] for event in case.history.events() if is_struck(event))
    case.env = {"PIPELINE_LOCK_DIR": str(case.folder / "another-machine")}  # on one machine the second waits its turn
    result = case.expect_recovery(case.start())
    case.send_signal(holder, signal.SIGCONT, what="the holder again")
    if case.expect_recovery(first)["uris"] != result["uris"]:
        raise Failed("the thawed holder came to another result")
    return result
