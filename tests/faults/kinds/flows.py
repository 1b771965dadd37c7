"""Faults of the flow itself. The same command resumes."""

import json
import signal
import time
from collections.abc import Callable
from typing import Any

from tests.faults import deployed
from tests.faults.case import Case, Failed
from tests.faults.history import Event, checkpoint_of, step
from tests.faults.kinds.register import kind
from tests.faults.kinds.resumption import check_resumed_at_epoch_2, kill_flow

_TOLD_S = 30.0
"""Within which Prefect's server shows an event that it was handed."""


@kind("flow killed in preprocess")
def _flow_killed_in_preprocess(case: Case) -> dict[str, Any]:
    return _flow_killed(case, "preprocess", after="raw", mid=_writes("/train/part-"))


@kind("flow killed in train")
def _flow_killed_in_train(case: Case) -> dict[str, Any]:
    return _flow_killed(case, "train", after="prepared", mid=checkpoint_of(1))


@kind("flow killed in predict")
def _flow_killed_in_predict(case: Case) -> dict[str, Any]:
    return _flow_killed(case, "predict", after="checkpoint", mid=_writes("/predictions/"))


@kind("flow killed in evaluate")
def _flow_killed_in_evaluate(case: Case) -> dict[str, Any]:
    return _flow_killed(case, "evaluate", after="predictions")


@kind("flow killed in promote")
def _flow_killed_in_promote(case: Case) -> dict[str, Any]:
    case.begin(after="evaluation")
    case.run(*case.random.choice([("promote", ""), ("write", "/registry/"), ("written", "/registry/")]))
    result = case.finish()
    if len(case.paths("registry/*/*.json")) != 1:
        raise Failed("the same decision was recorded twice")
    return result


@kind("flow killed between decision and event")
def _flow_killed_before_event(case: Case) -> dict[str, Any]:
    case.begin(after="evaluation")
    case.run("announce")
    (entry,) = case.paths("registry/*/*.json")
    told = json.loads(entry.read_text())["event"]
    if case.harness.events(told):
        raise Failed("the event was sent before the fault")
    result = case.finish()
    case.until(lambda: case.harness.events(told), "an event reports the promotion", limit_s=_TOLD_S)
    if case.harness.events(told) != 1:
        raise Failed("several events report one promotion")
    return result


@kind("flow killed in report")
def _flow_killed_in_report(case: Case) -> dict[str, Any]:
    return _flow_killed(case, "report", after="promotion")


@kind("flow with --refresh killed after its decision")
def _refresh_killed_after_its_decision(case: Case) -> dict[str, Any]:
    case.begin(after="promotion")
    case.options = ("--refresh",)
    case.run("report", "/reports/")
    result = case.finish()
    if len(case.paths("registry/*/*.json")) != 2:
        raise Failed("the next run decided on one more model")
    return result


@kind("flow of a deployment killed")
def _flow_of_deployment_killed(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    deployed.kill_flow(case, with_runner=False)
    return case.finish()


@kind("flow and its runner killed")
def _flow_and_runner_killed(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    deployed.kill_flow(case, with_runner=True)
    return case.finish()


@kind("flow gets SIGTERM")
def _flow_terminated(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    run = case.start()
    case.reaches(run, step, "training began")
    case.send_signal(run.process.pid, signal.SIGTERM, what="flow")
    started = time.time()
    case.wait(run)
    case.until(lambda: not run.processes(), "everything ended")
    case.recovery_s = time.time() - started
    return case.finish()


@kind("deadline passes in a job")
def _deadline_in_a_job(case: Case) -> dict[str, Any]:
    return _deadline(case, "step", "epoch 1", after="prepared", minutes="1")


@kind("deadline passes in the flow")
def _deadline_in_the_flow(case: Case) -> dict[str, Any]:
    return _deadline(case, "evaluate", "", after="predictions", minutes="0.1")


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
    case.reaches(first, lambda event: "struck" in event, "the holder froze")
    holder = next(event["pid"] for event in case.history.events() if "struck" in event)
    result = case.expect_recovery(case.start())
    case.send_signal(holder, signal.SIGCONT, what="the holder again")
    if case.expect_recovery(first)["uris"] != result["uris"]:
        raise Failed("the thawed holder came to another result")
    return result


def _deadline(case: Case, point: str, at: str, *, after: str, minutes: str) -> dict[str, Any]:
    case.begin(after=after)
    case.options = ("--deadline", minutes)
    case.expect_refusal(case.start(point, at, action="hang"), "not done within")
    case.options = ()
    return case.finish()


def _writes(part: str) -> Callable[[Event], bool]:
    """Whether an event is the writing of a file there."""
    return lambda event: event["point"] == "written" and part in event["at"]


def _flow_killed(case: Case, stage: str, *, after: str, mid: Callable[[Event], bool] | None = None) -> dict[str, Any]:
    """The flow is killed as the stage begins or, where there is work to watch for, in the middle of it."""
    case.begin(after=after)
    if mid is None or case.random.random() < 0.3:
        case.run(stage)
        return case.finish()
    run = case.start()
    case.reaches(run, mid, f"{stage} was under way")
    kill_flow(case, run)
    result = case.finish()
    return check_resumed_at_epoch_2(case, result) if stage == "train" else result
