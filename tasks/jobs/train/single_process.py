"""Training without Ray, in this process: the same steps and the same kind of checkpoints as with one worker."""

import functools
import time

from storage import files, manifest
from storage.statistics import EpochMetrics
from storage.uri import URI
from tasks.jobs.spec import JobSpec
from tasks.jobs.train import attempts, choices, train_loop
from tasks.jobs.train.make_loader import RankContext
from tasks.learning import user_code
from tasks.learning.epoch_metrics import TrainingFields, best_epoch
from tasks.learning.loaders import to_device
from tasks.resources import devices, machine, scaling
from tasks.stages import Train


def run(spec: JobSpec[Train]) -> None:
    """Commit the best epoch's checkpoint; on a CPU in fp32 it is bit-identical to one worker's with as many threads.

    There is no watchdog, since a user at a breakpoint makes no progress either.
    """
    started, stage = time.monotonic(), spec.stage
    prepared = manifest.load(stage.prepared)
    loader = choices.choose_loader(stage, prepared, workers=1)
    attempt = attempts.new_attempt(stage.scratch)
    device = devices.choose(machine.device(spec.needs.device), where=scaling.node_name())
    context = RankContext(
        rank=0,
        world_size=1,
        device=device,
        threads=scaling.threads_here(spec.threads or scaling.cores_here(), sharing=1),
        prepare=lambda batches: (to_device(device, batch) for batch in batches),
        report=functools.partial(keep_newest_and_best, training=vars(stage.recipe.training)),
        loader=loader,
    )
    with user_code.wrap_user_errors():
        train_loop.train(stage, prepared, stage.scratch.child(attempt), context)
    attempts.finish(stage, prepared, started=started, loader=loader)


def keep_newest_and_best(folder: URI, history: list[EpochMetrics], *, training: TrainingFields) -> None:
    """Remove all checkpoints of an attempt but the best one and the newest, which is in `folder`."""
    kept = {folder.name, f"epoch-{best_epoch(history, training):04d}"}
    for name in files.children(folder.parent):
        if name.startswith("epoch-") and name not in kept:
            files.remove(folder.parent.child(name))
