"""Faults of training workers. Ray Train restarts them, within the same command."""

from typing import Any

from storage import files
from tests.faults.case import Case, Failed
from tests.faults.harness import WORKERS
from tests.faults.history import step
from tests.faults.kinds.register import kind
from tests.faults.kinds.resumption import check_resumed_at_epoch_2
from tests.runs import Run

_QUICK_STALL = ("--stall", "0.5")
_STEPS_UNTIL_SEEN = 2
"""After how many steps of an epoch the loss is looked at first."""


@kind("worker killed while it is launched")
def _worker_killed_at_launch(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    run = case.start()
    case.signal_process(run, "ray::RayTrainWorker")
    return case.expect_recovery(run)


@kind("worker killed in mid-epoch")
def _worker_killed(case: Case) -> dict[str, Any]:
    return case.expect_recovery(_struck_in_step(case, "kill"))


def _worker_killed_with(loader: str, workers: int) -> None:
    @kind(f"worker killed in mid-epoch: {loader}, {workers} workers")
    def _killed(case: Case) -> dict[str, Any]:
        case.train_with(f"loader={loader}", workers=workers)
        return case.expect_recovery(_struck_in_step(case, "kill"))


for _loader, _workers in (("resident", 1), ("resident", 3), ("streaming", 2), ("dataloader", 2)):
    _worker_killed_with(_loader, _workers)
for _workers in (1, 2, 3):
    _worker_killed_with("ray-data", _workers)


@kind("worker killed: a model with dropout")
def _worker_killed_with_dropout(case: Case) -> dict[str, Any]:
    case.train_with("model=mobilenet-v3-small", workers=2)
    case.begin(after="prepared")
    run = case.start("write", "/epoch-0002/")  # epoch 1 is safe then
    return check_resumed_at_epoch_2(case, case.expect_recovery(run))


@kind("read task of a training killed")
def _read_task_killed(case: Case) -> dict[str, Any]:
    case.train_with("loader=ray-data", workers=2)
    case.begin(after="prepared")
    split = case.random.choice(["train", "validation"])
    return case.expect_recovery(case.start("read", f"/{split}/part-", skip=case.random.randrange(2)))


@kind("worker killed in report")
def _worker_killed_in_report(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    return case.expect_recovery(case.start("report", _any_epoch(case), rank=_any_rank(case)))


@kind("worker killed in upload")
def _worker_killed_in_upload(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    file = case.random.choice(["weights", "training", "checkpoint.json"])
    return case.expect_recovery(case.start("write", f"/epoch-000{case.random.randint(1, 2)}/{file}"))


@kind("worker frozen")
def _worker_frozen(case: Case) -> dict[str, Any]:
    case.options = _QUICK_STALL
    return case.expect_recovery(_struck_in_step(case, "freeze"))


@kind("rank stuck in a step")
def _rank_stuck(case: Case) -> dict[str, Any]:
    case.options = _QUICK_STALL
    return case.expect_recovery(_struck_in_step(case, "hang"))


@kind("rank leaves the loop early")
def _rank_leaves(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    case.options = _QUICK_STALL
    return case.expect_recovery(case.start("report", _any_epoch(case), rank=_any_rank(case), action="leave"))


@kind("exception in user code")
def _exception(case: Case) -> dict[str, Any]:
    return case.expect_recovery(_struck_in_step(case, "raise"))


@kind("worker exits with 0")
def _worker_exits(case: Case) -> dict[str, Any]:
    return case.expect_recovery(_struck_in_step(case, "exit"))


@kind("training diverges")
def _diverges(case: Case) -> None:
    case.begin(after="prepared")
    case.settings = ("learning_rate=1e30",)
    run = case.start()
    case.once.touch()
    case.expect_refusal(run, "lower learning_rate")
    if files.walk(case.root.child("checkpoints")):
        raise Failed("a model that diverged was published")
    steps = sum(step(event) for event in case.history.events())
    if steps > _STEPS_UNTIL_SEEN * WORKERS * 2:  # of each rank, twice as many as it may take
        raise Failed(f"training went on for {steps} steps after it had diverged")


def _struck_in_step(case: Case, action: str) -> Run:
    case.begin(after="prepared")
    skip = case.random.randrange(15)
    return case.start("step", _any_epoch(case), action=action, rank=_any_rank(case), skip=skip)


def _any_epoch(case: Case) -> str:
    return f"epoch {case.random.randint(1, 2)}"


def _any_rank(case: Case) -> int:
    return case.random.randrange(case.workers)
