"""A training on one rank, wherever that runs: every epoch that is not done yet, and a checkpoint after each."""

import contextvars
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from storage import files, manifest
from storage.hooks import reached
from storage.manifest import File, Manifest
from storage.uri import URI, masked
from tasks.jobs import attempts, driver, scale
from tasks.jobs.loaders import RowSource, make_loader
from tasks.jobs.spec import EPOCHS, IMAGES, TrainSpec
from tasks.learning import checkpoint, images, memory, state
from tasks.learning.epoch import EpochMetrics, wait_hints
from tasks.learning.imports import quickly
from tasks.learning.loop import Batch, Trainer, seed_everything
from tasks.learning.modeling import Classifier, ModelSpec, resolve_precision
from tasks.learning.recipes import Recipe

_CHECKPOINTS = 4
"""How many checkpoints there are at once at most: two that are kept, one being written, and the committed one."""
_NUM_IMAGES = 32
"""How many of the first training images are kept."""
Report = Callable[[URI, list[EpochMetrics]], None]
"""Told the folder of a new checkpoint and the history so far."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where one rank computes, and with whom."""

    rank: int
    """From 0."""
    world_size: int
    """Ranks together."""
    device: torch.device
    """On which it computes."""
    threads: int
    """With how many it computes at most; all ranks take the smallest of theirs."""
    prepare: Callable[[DataLoader[Batch]], Iterable[Batch]]
    """What makes a DataLoader one whose batches are on `device`."""
    report: Report
    """Called on every rank for each epoch, in their order, once its checkpoint is whole."""
    loader: str
    """Kind of loader: `resident`, `streaming`, `dataloader` or `ray-data`."""
    rows: RowSource | None = None
    """Where `ray-data` gets its rows from; None: this process reads them."""
    beat: Callable[[], None] = lambda: None
    """Called at every sign of progress."""


def train(spec: TrainSpec, prepared: Manifest, attempt: URI, here: Place) -> None:
    """Train `spec.recipe` on `prepared` to its last epoch, from the newest whole checkpoint of any attempt on."""
    recipe, rank = Recipe(**spec.recipe), here.rank
    if here.device.type == "cuda":
        torch.cuda.set_device(here.device)  # NCCL sends objects through the current one, else the first for all
    threads = _least(here.threads, here.world_size)
    torch.set_num_threads(threads)
    if here.device.type == "cpu":
        memory.keep()
    seed_everything(recipe.seed)
    precision = resolve_precision(recipe.precision, here.device)
    kind = here.device.type
    resolved = {"workers": here.world_size, "device": kind, "precision": precision, "threads": threads}
    elastic, most_steps = scale.limits(spec.workers), None
    if elastic:  # neither decides what is gone on with, but the schedule needs the same steps in every epoch
        resolved |= {"workers": str(spec.workers), "threads": 0}
        most_steps = attempts.fewest_steps(recipe.batch_size, prepared, workers=range(elastic[0], elastic[1] + 1))
    about = {"parameters": spec.parameters, "resolved": resolved}
    loader = make_loader(
        recipe,
        spec.source,
        prepared,
        kind=here.loader,
        rank=rank,
        world_size=here.world_size,
        device=here.device,
        prepare=here.prepare,
        rows=here.rows,
    )
    with quickly():  # most models are, or are made from, torchvision's
        model = Classifier(model_of(recipe, prepared))
    if spec.beginning:
        state.begin_with(model, spec.beginning)
    trainer = Trainer(recipe, model, loader, precision=precision, device=here.device, most_steps=most_steps)
    assert trainer.world_size == here.world_size, "the workers do not know of each other"
    driver.tell(f"{recipe.model} on {kind}, {precision}, {threads} threads, {loader.num_train_rows():,} training rows")
    files.check_space(spec.scratch, needed=_CHECKPOINTS * state.size_of(trainer))
    history = _resume(spec, trainer, about)
    with ThreadPoolExecutor(1) as aside:
        checkpoints = Checkpoints(attempt, here.report, aside)
        while len(history) < recipe.epochs and not _committed(spec, trainer):
            epoch = len(history) + 1

            def on_batch(at: str = f"epoch {epoch}") -> None:
                here.beat()
                reached("step", at)

            on_step, on_first_batch = reporter(epoch, recipe.epochs, rank), None
            if epoch == 1 and rank == 0:
                on_first_batch = partial(checkpoints.keep_images, classes=model.spec.classes)
            metrics = trainer.run_epoch(epoch, on_step=on_step, on_batch=on_batch, on_first_batch=on_first_batch)
            history.append(metrics)
            if reached("report", f"epoch {epoch}") == "leave":
                return
            checkpoints.take(history, trainer, prepared=spec.source.fingerprint, about=about)
            here.beat()
        checkpoints.finish()


def _least(threads: int, world_size: int) -> int:
    """The smallest `threads` of all ranks: each adds up its sums in the same way, wherever it runs."""
    every: list[int] = [threads] * world_size
    if world_size > 1:
        dist.all_gather_object(every, threads)
    return min(every)


def _committed(spec: TrainSpec, trainer: Trainer) -> bool:
    """Whether another run was first meanwhile, as rank 0 sees it."""
    seen = [trainer.rank == 0 and files.exists(spec.target.child(manifest.NAME))]
    if trainer.world_size > 1:
        dist.broadcast_object_list(seen, src=0)
    return seen[0]


def _resume(spec: TrainSpec, trainer: Trainer, about: dict[str, Any]) -> list[EpochMetrics]:
    """The history of the checkpoint that rank 0 chose for all ranks, its state restored; empty when there is none."""
    chosen: list[str | None] = [None]
    if trainer.rank == 0:
        chosen[0] = checkpoint.newest(spec.scratch)
    if trainer.world_size > 1:
        dist.broadcast_object_list(chosen, src=0)
    if chosen[0] is None:
        return []
    # A sum over two threads is not that over four: the rest of the run computes as its beginning did.
    about["resolved"]["threads"] = checkpoint.threads_of(URI(chosen[0]))
    if about["resolved"]["threads"]:
        torch.set_num_threads(about["resolved"]["threads"])
    history = state.restore(URI(chosen[0]), trainer, prepared=spec.source.fingerprint, about=about)
    if trainer.rank == 0:
        share = len(history) / trainer.recipe.epochs
        note = "going on from the newest checkpoint"
        driver.progress("epochs done before", len(history), len(history), note, fraction=share)
        if found := checkpoint.find_training_images(spec.scratch):
            _tell_images(*found)
    return history


class Checkpoints:
    """The state after each epoch, written while the next one trains; told of on every rank once it is whole."""

    def __init__(self, attempt: URI, report: Report, aside: Executor) -> None:
        self.attempt, self.report, self.aside = attempt, report, aside
        self._history: list[EpochMetrics] = []
        """Up to the epoch that nobody was told of yet; empty when there is none."""
        self._written: Future[None] | None = None

    def take(self, history: list[EpochMetrics], trainer: Trainer, *, prepared: str, about: dict[str, Any]) -> None:
        """Take the state after the latest epoch. The one before is whole then, or an error says why it is not."""
        self.finish()
        self._history, metrics = list(history), history[-1]
        if trainer.rank == 0:
            snapshot = state.take(trainer, history, prepared=prepared, about=about)
            self._written = self.aside.submit(checkpoint.write, self._folder(metrics.epoch), snapshot)
            note = f"validation loss {metrics.validation_loss:.4f}, accuracy {metrics.validation_accuracy:.4f}"
            note += f"; {metrics.waits}"
            driver.progress(EPOCHS, metrics.epoch, trainer.recipe.epochs, note, epoch=metrics.epoch)
            for epoch, hint in wait_hints([vars(each) for each in history]):
                if epoch == metrics.epoch:
                    driver.tell(f"WARNING: {hint}")

    def keep_images(self, images_BHWC: torch.Tensor, labels: torch.Tensor, *, classes: Sequence[str]) -> None:
        """Write the first rows of a batch and tell where they lie, while the training goes on; never fail it."""
        rows = images_BHWC[:_NUM_IMAGES].clone(), labels[:_NUM_IMAGES].clone()

        def keep() -> None:
            try:
                pixels, numbers = (tensor.cpu().numpy() for tensor in rows)
                table = images.to_table(np.arange(len(numbers)), pixels, numbers, classes=classes)
                _tell_images(self.attempt, checkpoint.write_training_images(self.attempt, table))
            except Exception as error:  # they are there to be looked at; nothing hangs on them
                driver.tell(f"WARNING: the first training images are not kept: {masked(str(error))}")

        # Without Ray whoever is told makes an artifact of the run that this context names.
        self.aside.submit(contextvars.copy_context().run, keep)

    def finish(self) -> None:
        """Return once the latest state is whole and told of."""
        if self._written is not None:
            self._written.result()
        if self._history:
            self.report(self._folder(self._history[-1].epoch), self._history)
        self._history, self._written = [], None

    def _folder(self, epoch: int) -> URI:
        return self.attempt.child(f"epoch-{epoch:04d}")


def _tell_images(attempt: URI, file: File) -> None:
    driver.say(IMAGES, uri=attempt, file=file.model_dump())


def reporter(epoch: int, epochs: int, rank: int) -> Callable[[int, int, float], None]:
    """What tells of each step that it is called for, on rank 0."""

    def on_step(step: int, steps: int, loss: float) -> None:
        if rank == 0:
            share = (epoch - 1 + step / steps) / epochs
            what, note = f"epoch {epoch}/{epochs}, steps", f"loss {loss:.3f}"
            driver.progress(what, step, steps, note, fraction=share, epoch=epoch)

    return on_step


def model_of(recipe: Recipe, prepared: Manifest) -> ModelSpec:
    """The model of `recipe` for images such as those in `prepared`."""
    metadata = prepared.columns["metadata"]
    return ModelSpec(
        model=recipe.model,
        image_shape=images.shape_of(metadata),
        classes=images.classes_of(metadata),
        mean=tuple(prepared.statistics["mean"]),
        std=tuple(prepared.statistics["std"]),
    )
