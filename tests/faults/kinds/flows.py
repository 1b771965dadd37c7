"""Faults of the flow itself. The same command resumes."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from storage import files, manifest
from storage.admin.gc import Garbage
from storage.uri import Root
from tests.faults.case import Case, Failed, kind
from tests.faults.harness import SETTINGS, raw_name
from tests.faults.history import Event, checkpoint_of, is_struck, step, written
from tests.prefect_system import PrefectSystem

_LATER_S = 2 * 24 * 3600


@kind("flow killed in preprocess", stage="preprocess", after="raw", mid=written("/train/part-"))
@kind("flow killed in train", quick=True, stage="train", after="prepared", mid=checkpoint_of(1))
@kind("flow killed in predict", stage="predict", after="checkpoint", mid=written("/predictions/"))
@kind("flow killed in report", stage="report", after="promotion")
def _killed(case: Case, *, stage: str, after: str, mid: Callable[[Event], bool] | None = None) -> dict[str, Any]:
    """As the stage begins or, where there is work to watch for, in the middle of it."""
    case.begin(after=after, workers=1)
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
    if len(decisions := case.paths("registry/*/*.json")) != 1:
        raise Failed(f"{len(decisions)} decisions were recorded, not 1")
    return result


@kind("flow of a deployment and its worker killed")
def _deployed_killed(case: Case) -> dict[str, Any]:
    """The worker is killed in training, then the flow; the same run resumes and completes."""
    case.begin(after="prepared")
    data = case.root.child(f"datasets/raw/{raw_name()}")
    with _prefect_system(case) as prefect_system:
        prefect_system.start_worker()
        run = prefect_system.start("mnist/smoke", storage=case.root, data=data, workers=1, settings=SETTINGS)
        case.until(lambda: case.history.has(checkpoint_of(1)), "epoch 1 is safe")
        engine = prefect_system.engine(run)
        prefect_system.kill_worker()
        case.send_signal(engine, signal.SIGKILL, what="flow, after its worker")
        case.until(lambda: prefect_system.state(run)["name"] == "Crashed", "the run was seen to have crashed")
        case.until(lambda: not prefect_system.processes(run), "what the flow had started ended with it")
        prefect_system.start_worker()
        case.until(lambda: prefect_system.starts(run) == 2, "the run was started again")
        if prefect_system.await_end(run) != ["Promoted"]:
            raise Failed("the run did not complete")
    return case.finish()


@contextlib.contextmanager
def _prefect_system(case: Case) -> Iterator[PrefectSystem]:
    """A server with the deployments, for the runs of `case`."""
    folder = case.folder / "prefect-system"
    folder.mkdir(parents=True, exist_ok=True)
    prefect_system = PrefectSystem(folder)
    prefect_system.env |= case.injection_env() | case.harness.environment(case.root)
    try:
        prefect_system.deploy()
        yield prefect_system
    finally:
        prefect_system.end()


@kind("flow gets SIGTERM")
def _terminated(case: Case) -> dict[str, Any]:
    case.begin(after="prepared", workers=1)
    run = case.start()
    case.reaches(run, step, "training began")
    case.send_signal(run.process.pid, signal.SIGTERM, what="flow")
    started = time.time()
    case.wait(run)
    case.until(lambda: not run.processes(), "everything ended")
    case.recovery_s = time.time() - started
    return case.finish()


@kind("deadline passes in a job", point="step", at="epoch 1", after="prepared", workers=1, limit="1m")
@kind("deadline passes in the flow", point="evaluate", at="", after="predictions", workers=0, limit="6s")
def _deadline(case: Case, *, point: str, at: str, after: str, workers: int, limit: str) -> dict[str, Any]:
    case.begin(after=after, workers=workers)
    case.options = ("--stage-timeout", limit)
    case.expect_refusal(case.start(point, at, action="hang"), "not done within")
    case.options = ()
    return case.finish()


@kind("two flows at once", quick=True, other_machine=False)
@kind("two flows at once, each on a machine of its own", other_machine=True)
def _two_at_once(case: Case, *, other_machine: bool) -> dict[str, Any]:
    """On one machine no work is done twice; on two the first commit wins."""
    case.begin(after=case.random.choice(["raw", "prepared"]), workers=1)
    case.once.touch()
    first = case.start()
    if other_machine:
        folder = case.folder / "another-machine"
        folder.mkdir()
        case.env = {"TMPDIR": str(folder)}
    runs = first, case.start()
    case.until(lambda: all(run.process.poll() is not None for run in runs), "both ended")
    jobs = [event["at"] for event in case.history.events() if event["point"] == "job"]
    if not other_machine and (repeated := {target for target in jobs if jobs.count(target) > 1}):
        raise Failed(f"work was done twice: {repeated}")
    results = [case.expect_recovery(run) for run in runs]
    if results[0]["uris"] != results[1]["uris"]:
        raise Failed("the two came to different results")
    return results[1]


@kind("garbage collected while a flow is frozen in promote", quick=True)
def _collected_while_frozen(case: Case) -> dict[str, Any]:
    """What the run uses stays."""
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
