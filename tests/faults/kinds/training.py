"""Faults of training workers. Ray Train restarts them, within the same command."""

from typing import Any

from storage import files
from tests.faults.case import Case, Failed
from tests.faults.harness import WORKERS
from tests.faults.history import step
from tests.faults.kinds.register import kind
from tests.learning import lite0

_QUICK_STALL = ("--stall-timeout", "30s")
_STEPS_UNTIL_SEEN = 2
"""After how many steps of an epoch the loss is looked at first."""


@kind("worker killed while it is launched")
def _worker_killed_at_launch(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    run = case.start()
    case.kill_process(run, "ray::RayTrainWorker")
    return case.expect_recovery(run)


@kind("worker killed in mid-epoch", quick=True, action="kill")
@kind("worker frozen", action="freeze", options=_QUICK_STALL)
@kind("rank stuck in a step", action="hang", options=_QUICK_STALL)
@kind("exception in user code", action="raise")
@kind("worker exits with 0", action="exit")
@kind("worker killed in mid-epoch: resident, 1 workers", action="kill", loader="resident", workers=1)
@kind("worker killed in mid-epoch: resident, 3 workers", action="kill", loader="resident", workers=3)
@kind("worker killed in mid-epoch: streaming, 2 workers", action="kill", loader="streaming")
@kind("worker killed in mid-epoch: dataloader, 2 workers", action="kill", loader="dataloader")
@kind("worker killed in mid-epoch: ray-data, 1 workers", action="kill", loader="ray-data", workers=1)
@kind("worker killed in mid-epoch: ray-data, 2 workers", action="kill", loader="ray-data")
@kind("worker killed in mid-epoch: ray-data, 3 workers", action="kill", loader="ray-data", workers=3)
def _struck_in_step(
    case: Case, *, action: str, options: tuple[str, ...] = (), loader: str | None = None, workers: int = WORKERS
) -> dict[str, Any]:
    if loader:
        case.train_with(f"loader={loader}", workers=workers)
    case.begin(after="prepared")
    case.options = options
    skip = case.random.randrange(15)
    return case.expect_recovery(case.start("step", _any_epoch(case), action=action, rank=_any_rank(case), skip=skip))


@kind("worker killed: a model with dropout")
def _worker_killed_with_dropout(case: Case) -> dict[str, Any]:
    case.train_with("model=mobilenet-v3-small", workers=2)
    case.begin(after="prepared")
    run = case.start("write", "/epoch-0002/")  # epoch 1 is safe then
    return case.expect_resumed_at_epoch_2(case.expect_recovery(run))


@kind("worker killed while the backbone is frozen", epoch=1)
@kind("worker killed after the backbone was unfrozen", epoch=2)
def _fine_tuning_killed(case: Case, *, epoch: int) -> dict[str, Any]:
    case.train_with(*fine_tuning(case), workers=2)
    case.begin(after="prepared")
    return case.expect_recovery(
        case.start("step", f"epoch {epoch}", rank=_any_rank(case), skip=case.random.randrange(9))
    )


def fine_tuning(case: Case) -> tuple[str, ...]:
    """Settings of a training that starts from real ImageNet weights, and freezes the backbone in its first epoch."""
    return f"model={lite0.MODEL}", f"start={lite0.write(case.harness.folder)}", "freeze_epochs=1"


@kind("read task of a training killed")
def _read_task_killed(case: Case) -> dict[str, Any]:
    case.train_with("loader=ray-data", workers=2)
    case.begin(after="prepared")
    split = case.random.choice(["train", "validation"])
    return case.expect_recovery(case.start("read", f"/{split}/part-", skip=case.random.randrange(2)))


@kind("worker killed in report", action="kill")
@kind("rank leaves the loop early", action="leave", options=_QUICK_STALL)
def _struck_in_report(case: Case, *, action: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    case.begin(after="prepared")
    case.options = options
    return case.expect_recovery(case.start("report", _any_epoch(case), rank=_any_rank(case), action=action))


@kind("worker killed in upload")
def _worker_killed_in_upload(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    file = case.random.choice(["weights", "training", "checkpoint.json"])
    return case.expect_recovery(case.start("write", f"/epoch-000{case.random.randint(1, 2)}/{file}"))


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


def _any_epoch(case: Case) -> str:
    return f"epoch {case.random.randint(1, 2)}"


def _any_rank(case: Case) -> int:
    return case.random.randrange(case.workers)
