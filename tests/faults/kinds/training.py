"""Faults of training workers. Ray Train restarts them, within the same command."""

from typing import Any

from storage import files
from tests.faults.case import Case, Failed, kind
from tests.faults.history import step
from tests.learning.training import LITE0, write_lite0

_STEPS_UNTIL_SEEN = 2
"""After how many steps of an epoch the loss is looked at first."""


@kind("worker killed while it is launched")
def _worker_killed_at_launch(case: Case) -> dict[str, Any]:
    case.begin(after="prepared", workers=1)
    run = case.start()
    case.kill_process(run, "ray::RayTrainWorker")
    return case.expect_recovery(run)


@kind("worker killed in mid-epoch")
@kind("worker frozen", action="freeze", options=("--stall-timeout", "30s"))
@kind("exception in user code", action="raise", workers=1)
@kind("worker killed in mid-epoch: 1 worker", quick=True, workers=1)
@kind("worker killed in mid-epoch: streaming", loader="streaming")
@kind("worker killed in mid-epoch: ray-data", loader="ray-data")
def _struck_in_step(
    case: Case, *, action: str = "kill", options: tuple[str, ...] = (), loader: str | None = None, workers: int = 2
) -> dict[str, Any]:
    case.begin(*[f"loader={loader}"] * bool(loader), after="prepared", workers=workers)
    case.options = options
    skip, epoch, rank = case.random.randrange(15), case.random.randint(1, 2), case.random.randrange(workers)
    return case.expect_recovery(case.start("step", f"epoch {epoch}", action=action, rank=rank, skip=skip))


@kind("worker killed after the backbone was unfrozen")
def _fine_tuning_killed(case: Case) -> dict[str, Any]:
    """From real ImageNet weights; the model has dropout, and its backbone is frozen in the first epoch."""
    weights = write_lite0(case.harness.folder)
    case.begin(f"model={LITE0}", f"start={weights}", "freeze_epochs=1", after="prepared", workers=1)
    return case.expect_recovery(case.start("step", "epoch 2", rank=0, skip=case.random.randrange(9)))


@kind("worker killed in upload")
def _worker_killed_in_upload(case: Case) -> dict[str, Any]:
    case.begin(after="prepared", workers=1)
    file = case.random.choice(["weights", "training", "checkpoint.json"])
    return case.expect_recovery(case.start("write", f"/epoch-000{case.random.randint(1, 2)}/{file}"))


@kind("training diverges")
def _diverges(case: Case) -> None:
    case.begin(after="prepared", workers=2)
    case.settings = ("learning_rate=1e30",)
    run = case.start()
    case.once.touch()
    case.expect_refusal(run, "lower learning_rate")
    if files.walk(case.root.child("checkpoints")):
        raise Failed("a model that diverged was published")
    steps = sum(step(event) for event in case.history.events())
    if steps > _STEPS_UNTIL_SEEN * case.workers * 2:  # of each rank, twice as many as it may take
        raise Failed(f"training went on for {steps} steps after it had diverged")
