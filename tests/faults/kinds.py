"""Every kind of fault, and what has to come of it."""

import dataclasses
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from storage import files, manifest
from storage.uri import URI, DatasetURI
from tasks.download import ingest
from tasks.learning import datasets
from tasks.learning.datasets import mnist_sample
from tests import mirrors
from tests.faults import clusters, deployed
from tests.faults.case import Case, Failed
from tests.faults.history import step, step_of
from tests.faults.lab import CANARY, STAGES
from tests.faults.proxy import Fault
from tests.runs import Run

Scenario = Callable[[Case], dict[str, Any] | None]
"""Strikes, and gives the result of the run that survived it; none where that is the end."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    name: str
    scenario: Scenario
    is_quick: bool
    """Whether it belongs to the short form."""


KINDS: dict[str, Kind] = {}
_QUICK_STALL = ("--stall", "0.5")


def _kind(name: str, *, quick: bool = False) -> Callable[[Scenario], Scenario]:
    def add(scenario: Scenario) -> Scenario:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, scenario, quick)
        return scenario

    return add


# Training workers. Ray Train starts them again, in the same command.


@_kind("worker killed while it is launched")
def _worker_killed_at_launch(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    run = case.start()
    case.strike_process(run, "ray::RayTrainWorker")
    return case.goes_on(run)


@_kind("worker killed in mid-epoch", quick=True)
def _worker_killed(case: Case) -> dict[str, Any]:
    return case.goes_on(_struck_in_step(case, "kill"))


@_kind("worker killed in report")
def _worker_killed_in_report(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    return case.goes_on(case.start("report", _any_epoch(case), rank=_any_rank(case)))


@_kind("worker killed in upload")
def _worker_killed_in_upload(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    file = case.random.choice(["weights", "training", "checkpoint.json"])
    return case.goes_on(case.start("write", f"/epoch-000{case.random.randint(1, 2)}/{file}"))


@_kind("worker frozen")
def _worker_frozen(case: Case) -> dict[str, Any]:
    case.options = _QUICK_STALL
    return case.goes_on(_struck_in_step(case, "freeze"))


@_kind("rank stuck in a step", quick=True)
def _rank_stuck(case: Case) -> dict[str, Any]:
    case.options = _QUICK_STALL
    return case.goes_on(_struck_in_step(case, "hang"))


@_kind("rank leaves the loop early")
def _rank_leaves(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    case.options = _QUICK_STALL
    return case.goes_on(case.start("report", _any_epoch(case), rank=_any_rank(case), action="leave"))


@_kind("exception in user code")
def _exception(case: Case) -> dict[str, Any]:
    return case.goes_on(_struck_in_step(case, "raise"))


@_kind("worker exits with 0")
def _worker_exits(case: Case) -> dict[str, Any]:
    return case.goes_on(_struck_in_step(case, "exit"))


@_kind("training diverges")
def _diverges(case: Case) -> None:
    case.begin(after="prepared")
    case.settings = ("learning_rate=1e30",)
    run = case.start()
    case.once.touch()
    case.refused(run, "lower learning_rate")
    if files.walk(case.root.child("checkpoints")):
        raise Failed("a model that diverged was published")
    if case.history.has(lambda event: event["point"] == "step" and event["at"] == "epoch 2"):
        raise Failed("training went on after it had diverged")


# What surrounds the workers. A fresh job goes on, in the same command.


@_kind("controller killed")
def _controller_killed(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    run = case.start()
    case.reaches(run, step_of(2), "epoch 2 began")
    case.strike_process(run, "ray::TrainController")
    return _went_on_from_epoch_2(case, case.goes_on(run))


@_kind("job's driver killed")
def _driver_killed(case: Case) -> dict[str, Any]:
    after, target = case.random.choice(
        [("raw", "prepared"), ("prepared", "checkpoints"), ("checkpoint", "predictions")]
    )
    case.begin(after=after)
    return case.goes_on(case.start("job", f"/{target}/"))


@_kind("local Ray killed")
def _ray_killed(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    run = case.start()
    case.reaches(run, step_of(2), "epoch 2 began")
    case.strike_process(run, "gcs_server")
    return _went_on_from_epoch_2(case, case.goes_on(run))


@_kind("node killed")
def _node_killed(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    with clusters.two_nodes(case) as cluster:
        run = case.start()
        case.reaches(run, step_of(2), "epoch 2 began")
        cluster.kill_a_node()
        cluster.add_a_node()
        return case.goes_on(run)


@_kind("crash in Parquet writing", quick=True)
def _crash_in_writing(case: Case) -> dict[str, Any]:
    after, part = case.random.choice([("raw", "/train/part-"), ("checkpoint", "/predictions/")])
    case.begin(after=after)
    return case.goes_on(case.start("write", part))


@_kind("crash between data and manifest", quick=True)
def _crash_before_manifest(case: Case) -> dict[str, Any]:
    stage = case.random.choice([stage for stage in STAGES if stage not in ("raw", "promotion")])
    case.begin(after=_before(stage))
    return case.settle(case.start("write", case.golden_path(STAGES[stage][0], "/" + manifest.NAME)))


# The flow. The same command again goes on.


@_kind("flow killed in download")
def _flow_killed_in_download(case: Case) -> None:
    case.begin(after=None)
    with mirrors.serve(mnist_sample.FOLDER) as mirror:
        case.wait(_downloading(case, mirror.address, "write", "/train/part-"))
        _await_download(case, _downloading(case, mirror.address))


@_kind("flow killed in preprocess")
def _flow_killed_in_preprocess(case: Case) -> dict[str, Any]:
    return _flow_killed(case, "preprocess", after="raw", mid=lambda event: "/train/part-" in event["at"])


@_kind("flow killed in train", quick=True)
def _flow_killed_in_train(case: Case) -> dict[str, Any]:
    return _flow_killed(case, "train", after="prepared", mid=step_of(2))


@_kind("flow killed in predict")
def _flow_killed_in_predict(case: Case) -> dict[str, Any]:
    return _flow_killed(case, "predict", after="checkpoint", mid=lambda event: "/predictions/" in event["at"])


@_kind("flow killed in evaluate")
def _flow_killed_in_evaluate(case: Case) -> dict[str, Any]:
    return _flow_killed(case, "evaluate", after="predictions")


@_kind("flow killed in promote")
def _flow_killed_in_promote(case: Case) -> dict[str, Any]:
    case.begin(after="evaluation")
    case.run(*case.random.choice([("promote", ""), ("write", "/registry/"), ("written", "/registry/")]))
    result = case.finish()
    if len(case.paths("registry/*/*.json")) != 1:
        raise Failed("the same decision was recorded twice")
    return result


@_kind("flow killed in report")
def _flow_killed_in_report(case: Case) -> dict[str, Any]:
    return _flow_killed(case, "report", after="promotion")


@_kind("flow and its runner killed")
def _flow_and_runner_killed(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    deployed.kill_flow_and_runner(case)
    return case.finish()


@_kind("flow gets SIGTERM")
def _flow_terminated(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    run = case.start()
    case.reaches(run, step, "training began")
    case.strike(run.process.pid, signal.SIGTERM, what="flow")
    started = time.time()
    case.wait(run)
    case.until(lambda: not run.processes(), "everything ended")
    case.recovery_s = time.time() - started
    return case.finish()


@_kind("deadline passes")
def _deadline(case: Case) -> dict[str, Any]:
    after, point, at, minutes = case.random.choice(
        [("prepared", "step", "epoch 1", "0.5"), ("predictions", "evaluate", "", "0.1")]
    )
    case.begin(after=after)
    case.options = ("--deadline", minutes)
    case.refused(case.start(point, at, action="hang"), "not done within")
    case.options = ()
    return case.finish()


@_kind("two flows at once", quick=True)
def _two_at_once(case: Case) -> dict[str, Any]:
    case.begin(after=case.random.choice(["raw", "prepared"]))
    case.once.touch()
    first, second = case.start(), case.start()
    results = [case.goes_on(run) for run in (first, second)]
    jobs = [event["at"] for event in case.history.events() if event["point"] == "job"]
    if len(jobs) != len(set(jobs)) or not jobs:
        raise Failed(f"work was done twice: {jobs}")
    if results[0]["uris"] != results[1]["uris"]:
        raise Failed("the two came to different results")
    return results[1]


@_kind("lease holder frozen beyond its lease, then thawed")
def _holder_frozen(case: Case) -> dict[str, Any]:
    case.begin(after=case.random.choice(["prepared", "checkpoint"]))
    first = case.start("job", action="freeze")
    case.reaches(first, lambda event: "struck" in event, "the holder froze")
    holder = next(event["pid"] for event in case.history.events() if "struck" in event)
    result = case.goes_on(case.start())
    case.strike(holder, signal.SIGCONT, what="the holder again")
    if case.goes_on(first)["uris"] != result["uris"]:
        raise Failed("the thawed holder came to another result")
    return result


# Stored bytes. What is damaged is never used.


@_kind("torn snapshot of Ray Train")
def _torn_snapshot(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    run = case.start()
    case.reaches(run, step_of(2), "epoch 2 began")
    _kill_flow(case, run)
    for path in case.paths("runs/*/attempt-*/checkpoint_manager_snapshot.json"):
        case.damage(partial(_truncate, path), what=path.name)
    return _went_on_from_epoch_2(case, case.finish())


@_kind("checkpoint truncated")
def _checkpoint_truncated(case: Case) -> dict[str, Any]:
    return _checkpoint_damaged(case, _truncate)


@_kind("checkpoint flipped", quick=True)
def _checkpoint_flipped(case: Case) -> dict[str, Any]:
    return _checkpoint_damaged(case, partial(_flip, case))


@_kind("checkpoint missing")
def _checkpoint_missing(case: Case) -> dict[str, Any]:
    return _checkpoint_damaged(case, Path.unlink)


@_kind("dataset file flipped", quick=True)
def _dataset_flipped(case: Case) -> dict[str, Any]:
    return _dataset_damaged(case, "[tv]*/part-*", partial(_flip, case))


@_kind("dataset file truncated")
def _dataset_truncated(case: Case) -> dict[str, Any]:
    return _dataset_damaged(case, "t*/part-*", _truncate)


@_kind("dataset file deleted")
def _dataset_deleted(case: Case) -> dict[str, Any]:
    return _dataset_damaged(case, "t*/part-*", Path.unlink)


@_kind("manifest flipped")
def _manifest_flipped(case: Case) -> dict[str, Any]:
    return _dataset_damaged(case, manifest.NAME, partial(_flip, case))


@_kind("disk full")
def _disk_full(case: Case) -> dict[str, Any]:
    after, at = case.random.choice(
        [
            *(("raw", "/train/part-"), ("prepared", "/epoch-0001/weights"), ("prepared", "/checkpoints/")),
            *(("checkpoint", "/predictions/"), ("predictions", "/evaluations/")),
        ]
    )
    case.begin(after=after)
    case.refused(case.start("write", at, action="full"), "is full")
    return case.finish()


# Downloads. Another mirror is taken, and nothing but the published bytes.


@_kind("download truncated")
def _download_truncated(case: Case) -> None:
    _download_spoilt(case, "truncated")


@_kind("download tampered")
def _download_tampered(case: Case) -> None:
    _download_spoilt(case, "wrong")


@_kind("download stalls")
def _download_stalls(case: Case) -> None:
    _download_spoilt(case, "stall")


@_kind("download not found")
def _download_missing(case: Case) -> None:
    _download_spoilt(case, 404)


# S3. What passes by itself is ridden out; what does not is told, and the same command goes on.


def _add_s3_kinds() -> None:
    for fault in get_args(Fault):
        for way in ("reads", "writes", "commit"):
            if fault != "truncated" or way == "reads":
                scenario = partial(_s3_fault, fault=fault, way=way)
                _kind(f"S3: {fault} on {way}", quick=(fault, way) in [("503", "reads"), ("lost", "commit")])(scenario)


def _s3_fault(case: Case, *, fault: Fault, way: str) -> dict[str, Any]:
    after, source, target = case.random.choice(
        [
            ("raw", "/datasets/raw/", "/datasets/prepared/"),
            *[("checkpoint", "/datasets/prepared/", "/predictions/")] * 2,
            ("checkpoint", "/checkpoints/", "/predictions/"),
            ("prepared", "/datasets/prepared/", "/checkpoints/"),
        ]
    )
    case.begin(after=after, on_s3=True)
    if way == "reads":
        case.spoil(fault, "GET", source, times=1 if fault in ("stall", "403") else 2)
    elif way == "writes":
        case.spoil(fault, "PUT", target)
    else:
        case.spoil(fault, "PUT", case.golden_path(target, "/" + manifest.NAME))
    run = case.start()
    if fault != "403":
        return case.rides_out(run)
    case.refused(run, "PermissionError")
    return case.finish()


_add_s3_kinds()


def _struck_in_step(case: Case, action: str) -> Run:
    case.begin(after="prepared")
    skip = case.random.randrange(15)
    return case.start("step", _any_epoch(case), action=action, rank=_any_rank(case), skip=skip)


def _any_epoch(case: Case) -> str:
    return f"epoch {case.random.randint(1, 2)}"


def _any_rank(case: Case) -> int:
    return case.random.randint(0, 1)


def _before(stage: str) -> str:
    return list(STAGES)[list(STAGES).index(stage) - 1]


def _flow_killed(
    case: Case, stage: str, *, after: str, mid: Callable[[dict[str, Any]], bool] | None = None
) -> dict[str, Any]:
    """The flow is killed as the stage begins or, where there is work to watch for, in the middle of it."""
    case.begin(after=after)
    if mid is None or case.random.random() < 0.3:
        case.run(stage)
        return case.finish()
    run = case.start()
    case.reaches(run, mid, f"{stage} was under way")
    _kill_flow(case, run)
    result = case.finish()
    return _went_on_from_epoch_2(case, result) if stage == "train" else result


def _kill_flow(case: Case, run: Run) -> None:
    case.strike(run.process.pid, signal.SIGKILL, what="flow")
    case.wait(run)
    case.until(lambda: not run.processes(), "what the flow had started ended with it")


def _went_on_from_epoch_2(case: Case, result: dict[str, Any]) -> dict[str, Any]:
    """`result`, once it is known that no process trained epoch 1 again."""
    events = list(case.history.events())
    struck = next(event["s"] for event in events if "struck" in event)
    if any(step_of(1)(event) and event["started"] > struck for event in events):
        raise Failed("training began again instead of going on")
    return result


def _checkpoint_damaged(case: Case, change: Callable[[Path], None]) -> dict[str, Any]:
    """The newest checkpoint is damaged after the last epoch, before the commit; the one before it is used."""
    case.begin(after="prepared")
    run = case.start("write", "/checkpoints/", action="freeze")
    case.reaches(run, lambda event: "struck" in event, "training ended")
    _kill_flow(case, run)
    victim = case.random.choice(case.paths("runs/*/attempt-*/epoch-0002/*"))
    case.damage(lambda: change(victim), what=victim.name)
    result = _went_on_from_epoch_2(case, case.finish())
    if sum(step_of(2)(event) for event in case.history.events()) <= sum(map(step_of(1), case.history.events())):
        raise Failed("epoch 2 was not trained again: the damaged checkpoint was used")
    return result


def _dataset_damaged(case: Case, files_: str, change: Callable[[Path], None]) -> dict[str, Any]:
    case.begin(after="prepared")
    victim = case.random.choice(case.paths(f"datasets/prepared/*/{files_}"))
    case.damage(lambda: change(victim), what=victim.name)
    case.refused(case.start(), "Damaged")
    folder = next(path for path in victim.parents if path.parent.name == "prepared")
    shutil.rmtree(folder)  # as the message says
    return case.finish()


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(case: Case, path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[case.random.randrange(len(content))] ^= 1 << case.random.randrange(8)
    path.write_bytes(content)


def _downloading(case: Case, address: str, point: str | None = None, at: str = "") -> Run:
    """A run that downloads the sample from `address` first."""
    case.arguments = ["--recipe", "mnist-sample-resnet18", "--source", address, "--storage", case.root]
    return case.start(point, at)


def _await_download(case: Case, run: Run) -> None:
    """End `run` once it has downloaded, and compare with what the archives hold."""
    case.reaches(run, lambda event: event["point"] == "preprocess", "the download ended")
    case.strike(run.process.pid, signal.SIGTERM, what="flow, which has shown enough")
    case.wait(run)
    (made,) = case.paths("datasets/raw/*/" + manifest.NAME)
    wanted = DatasetURI(str(case.lab.folder / "wanted-000000000000"))
    ingest(datasets.load("mnist-sample"), wanted, scratch=wanted.child("scratch"), log=lambda *line: None)
    found = manifest.verify(URI(str(made.parent)))
    if found.files != manifest.load(wanted).files:
        raise Failed("the downloaded rows are not those of the archives")
    if CANARY in made.read_text():
        raise Failed("a secret stands in the manifest")


def _download_spoilt(case: Case, fault: mirrors.Fault) -> None:
    case.begin(after=None)
    with mirrors.serve(mnist_sample.FOLDER) as mirror:
        name = case.random.choice([file.name for file in datasets.load("mnist-sample").files])
        mirror.misbehave(name, always=fault)
        case.damage(lambda: None, what=f"{name}: {fault}")
        run = _downloading(case, mirror.address)
        _await_download(case, run)
        if not mirror.requests.count(name):
            raise Failed("the spoilt file was never asked for")
        if not run.says(f"{name}: {mirror.address}"):
            raise Failed("nobody was told that the mirror is bad")
