"""Training in this process: what a training with one worker does, to checkpoints of the same kind, without Ray."""

import os
import time
from collections.abc import Iterable, Iterator

import torch

from storage import files, manifest
from storage.uri import URI
from tasks.jobs import attempts, epochs, permanent, scale
from tasks.jobs.spec import TrainSpec
from tasks.learning.epoch import EpochMetrics
from tasks.learning.loop import Batch


def run(spec: TrainSpec) -> None:
    """Commit the best epoch's checkpoint; on a CPU in fp32 the weights of one worker with as many threads, to the bit.

    No watchdog: whoever stands at a breakpoint makes no progress either.
    """
    started = time.monotonic()
    prepared = manifest.load(spec.source)
    attempts.fewest_steps(spec.recipe["batch_size"], prepared, workers=[1])
    attempt = spec.scratch.child(attempts.new_attempt(spec.scratch))
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    here = epochs.Place(
        rank=0,
        world_size=1,
        device=device,
        threads=scale.threads_here(os.cpu_count() or 1, sharing=1),
        prepare=lambda loader: on_device(device, loader),
        report=keep_newest_and_best,
        loader=attempts.choose_loader(spec.recipe["loader"], prepared, has_idle_nodes=False),
    )
    try:
        epochs.train(spec, prepared, attempt, here)
    except Exception as error:
        told = permanent.told(error)
        if told is error:
            raise
        raise told from error
    attempts.commit(spec, started=started, loader=here.loader)


def keep_newest_and_best(folder: URI, history: list[EpochMetrics]) -> None:
    """Remove the other checkpoints of the attempt whose newest one lies in `folder`."""
    best = min(history, key=lambda metrics: (metrics.validation_loss, metrics.epoch)).epoch
    kept = {folder.name, f"epoch-{best:04d}"}
    for name in files.children(folder.parent):
        if name.startswith("epoch-") and name not in kept:
            files.remove(folder.parent.child(name))


def on_device(device: torch.device, batches: Iterable[Batch]) -> Iterator[Batch]:
    """`batches` with their tensors on `device`."""
    for images, labels in batches:
        yield images.to(device), labels.to(device)
