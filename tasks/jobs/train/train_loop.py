"""The training loop of one rank, with or without Ray: all epochs that are not done yet, and a checkpoint after each."""

import dataclasses
import functools
import platform
import tempfile
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from storage import files, manifest, process
from storage.failpoints import failpoint
from storage.kinds import PREPARED
from storage.manifest import JSON, Manifest
from storage.process import gc_paused
from storage.statistics import EpochMetrics, Resolved
from storage.terminal import count
from storage.uri import URI
from tasks.jobs import events
from tasks.jobs.events import EPOCHS
from tasks.jobs.spec import JobSpec
from tasks.jobs.train import attempts, choices
from tasks.jobs.train.make_loader import RankContext, Report, make_loader
from tasks.learning import checkpoint, hardware, training_state, user_code
from tasks.learning.epoch_metrics import TrainingFields, best_epoch, has_checkpoint, is_last
from tasks.learning.loaders import to_device
from tasks.learning.loop import Trainer, seed_everything
from tasks.learning.modeling import Classifier, resolve_precision, set_arithmetic
from tasks.learning.step import keep_compiled_code
from tasks.resources import devices, machine, scaling
from tasks.stages import Train

_CHECKPOINTS = 4
"""Most checkpoints that exist at once: two that are kept, one being written, and the committed one."""
_T = TypeVar("_T")


def train(stage: Train, prepared: Manifest, attempt: URI, context: RankContext) -> None:
    """Train `stage.recipe` on `prepared` to its last epoch, starting from the newest complete checkpoint, if any."""
    recipe, rank, kind = choices.resolved(stage.recipe, prepared), context.rank, context.device.type
    if kind == "cuda":
        torch.cuda.set_device(context.device)  # NCCL sends objects through the current device, by default the first
    threads = min(_gathered(context.threads, context.world_size))  # every rank must split its sums in the same way
    torch.set_num_threads(threads)
    if kind == "cpu":
        process.keep_memory()
    seed_everything(recipe.finetuning.seed)
    if kind == "cuda":
        keep_compiled_code()
        reason = choices.why_eager(recipe, workers=context.world_size, loader=context.loader)
        if recipe.resources.step == "auto" and reason:
            recipe = dataclasses.replace(recipe, resources=dataclasses.replace(recipe.resources, step="eager"))
            if rank == 0:
                events.write_line(f"steps are eager, not CUDA graphs, with {reason} (docs/gpu.md)")
    elif recipe.finetuning.compile == "on":
        keep_compiled_code()
        devices.check_compiler(where=f"node {platform.node()}")
    loader = make_loader(recipe, stage.prepared, prepared, context)
    with gc_paused():  # most models import torchvision
        is_random = stage.initial is None and stage.weights is None
        model = Classifier(
            training_state.model_of(recipe.model, prepared, initial=stage.initial, weights=stage.weights),
            pretrained=is_random,
        )
    every = _gathered(resolve_precision(recipe.finetuning.precision, context.device, model), context.world_size)
    precision = "fp32" if "fp32" in every else "bf16"  # the ranks' hardware may differ
    set_arithmetic(precision, context.device)
    if is_random:
        training_state.initialize_from_rows(model, loader)
    else:
        has_new_head = training_state.load_initial_weights(model, initial=stage.initial, weights=stage.weights)
        if rank == 0 and has_new_head:
            events.write_line("training starts with the weights of a model for other classes: its last layers are new")
    trainer = Trainer(
        recipe,
        model,
        loader,
        device=context.device,
        precision=precision,
        class_counts=[prepared.statistics_of(PREPARED).class_counts["train"][name] for name in model.spec.classes],
        say=events.write_line,
    )
    resolved = Resolved(
        batch_size=recipe.finetuning.batch_size,
        class_weights="balanced" if trainer.class_weights is not None else "none",
        device=kind,
        precision=precision,
        threads=threads,
        workers=context.world_size,
    )
    fields: JSON = {"parameters": stage.values, "resolved": resolved, "recipe": stage.recipe.to_dict()}
    assert trainer.world_size == context.world_size, "torch.distributed has another number of workers"
    rows = count(loader.num_train_rows(), "training row")
    events.write_line(f"{recipe.model} on {kind}, {precision}, {count(threads, 'thread')}, {rows}")
    # three tensors per parameter: the parameter and AdamW's two moments
    size = 3 * sum(parameter.nbytes for parameter in model.parameters())
    files.check_space(stage.scratch, needed=_CHECKPOINTS * size)
    trained_on = attempts.trained_on(stage, prepared)
    history = _resume(stage.scratch, trainer, fields, trained_on=trained_on)

    def on_batch() -> None:
        context.beat()
        failpoint("step", f"epoch {len(history) + 1}")

    def on_step(step: int, steps: int, loss: float) -> None:
        epoch, epochs = len(history) + 1, recipe.finetuning.epochs
        if rank == 0:
            what, share = f"epoch {epoch}/{epochs}, steps", (epoch - 1 + step / steps) / epochs
            events.progress(what, step, steps, f"loss {loss:.3f}", fraction=share, epoch=epoch)

    with ThreadPoolExecutor(1) as writer:
        checkpoints = Checkpoints(attempt, context.report, writer)
        while not is_last(history, vars(recipe.finetuning)):
            # Another run may have committed the target; rank 0 looks.
            if _gathered(rank == 0 and manifest.is_committed(stage.target), trainer.world_size)[0]:
                break
            if choices.compiling_pays(recipe, history, precision=precision) and devices.can_compile():
                trainer.compile_step()
            history.append(trainer.run_epoch(len(history) + 1, on_step=on_step, on_batch=on_batch))
            failpoint("report", f"epoch {len(history)}")
            checkpoints.take(history, trainer, prepared=trained_on, fields=fields)
            context.beat()
        checkpoints.finish()


def train_here(spec: JobSpec[Train], prepared: Manifest, attempt: URI, *, loader: str) -> None:
    """Train in this process, without Ray: the same steps and the same kind of checkpoints as with one worker.

    On a CPU in fp32 they are bit-identical to those of a worker with as many threads. There is no watchdog, since a
    user at a breakpoint makes no progress either.
    """
    device = devices.choose(machine.device(spec.needs.device), where=scaling.node_name())
    context = RankContext(
        rank=0,
        world_size=1,
        device=device,
        threads=scaling.threads_here(spec.threads or scaling.cores_here(), sharing=1),
        prepare=lambda batches: (to_device(device, batch) for batch in batches),
        report=functools.partial(_keep_newest_and_best, training=vars(spec.stage.recipe.finetuning)),
        loader=loader,
    )
    with user_code.wrap_user_errors():
        train(spec.stage, prepared, attempt, context)


def _keep_newest_and_best(folder: URI, history: list[EpochMetrics], *, training: TrainingFields) -> None:
    """Remove all checkpoints of an attempt but the best one and the newest, which is in `folder`."""
    kept = {folder.name, f"epoch-{best_epoch(history, training):04d}"}
    for name in files.children(folder.parent):
        if name.startswith("epoch-") and name not in kept:
            files.remove(folder.parent.child(name))


def _gathered(value: _T, world_size: int) -> list[_T]:
    """Return the `value` of each rank; every rank must call this."""
    values = [value] * world_size
    if world_size > 1:
        dist.all_gather_object(values, value)
    return values


def _resume(scratch: URI, trainer: Trainer, fields: JSON, *, trained_on: str) -> list[EpochMetrics]:
    """Restore the newest complete checkpoint of any attempt; return its history, empty if there is none.

    Adds to `fields` the hardware and versions of all epochs, past and future.
    """
    current = hardware.here(trainer.device, precision=trainer.precision)
    fields["hardware"] = now = tuple(dict.fromkeys(_gathered(current, trainer.world_size)))
    with tempfile.TemporaryDirectory() as name:
        newest = attempts.fetch_newest(scratch, Path(name)) if trainer.rank == 0 else None
        newest = _gathered(newest, trainer.world_size)[0]
        if newest is None:
            return []
        uri, meta = newest
        if trainer.rank > 0 and not checkpoint.fetch(uri, meta, Path(name)):  # each rank verifies what it will load
            raise RuntimeError(f"the checkpoint {uri} changed after it was selected; run again to select another")
        history = training_state.restore(Path(name), trainer, prepared=trained_on, fields=fields)
    is_done, is_elsewhere = meta.is_last, not set(now) <= set(meta.hardware)
    fields["hardware"] = meta.hardware if is_done else tuple(dict.fromkeys(meta.hardware + now))
    if threads := meta.resolved.threads:
        # A sum over two threads differs from one over four: the rest of the run uses as many threads as its beginning.
        # On other hardware, which may have fewer cores, the sums differ anyway.
        threads = min(threads, torch.get_num_threads()) if is_elsewhere else threads
        torch.set_num_threads(threads)
        fields["resolved"] = fields["resolved"].model_copy(update={"threads": threads})
    if trainer.rank == 0:
        if is_elsewhere and not is_done:
            events.write_line(
                f"resuming after epoch {meta.epoch} on other hardware or versions, which may change the last digits of "
                f"the result ({'; '.join(meta.hardware)}, now {'; '.join(now)})"
            )
        note = f"done before, resuming from its checkpoint; best so far: epoch {meta.best_epoch}"
        events.progress(EPOCHS, len(history), trainer.recipe.finetuning.epochs, note)
    return history


class Checkpoints:
    """Writer of the state after each epoch while the next one trains; reports it on every rank once it is complete."""

    def __init__(self, attempt: URI, report: Report, writer: Executor) -> None:
        self.attempt, self.report, self.writer = attempt, report, writer
        self._history: list[EpochMetrics] = []
        """History up to the epoch that is not reported yet; empty if there is none."""
        self._written: Future[None] | None = None

    def take(self, history: list[EpochMetrics], trainer: Trainer, *, prepared: str, fields: JSON) -> None:
        """Start to write the state after the latest epoch, if it is to have a checkpoint.

        First waits for the previous one, and raises its error.
        """
        epoch = history[-1].epoch
        if has_checkpoint(epoch, vars(trainer.recipe.finetuning)):
            self.finish()
            self._history = list(history)
            if trainer.rank == 0:
                write = training_state.take(trainer, history, prepared=prepared, fields=fields)
                self._written = self.writer.submit(write, self._folder(epoch))
        if trainer.rank == 0:
            _tell_epoch(history, trainer)

    def finish(self) -> None:
        """Wait until the latest state is complete, and report it."""
        if self._written is not None:
            self._written.result()
        if self._history:
            self.report(self._folder(self._history[-1].epoch), self._history)
        self._history, self._written = [], None

    def _folder(self, epoch: int) -> URI:
        return self.attempt.child(f"epoch-{epoch:04d}")


def _tell_epoch(history: list[EpochMetrics], trainer: Trainer) -> None:
    """Report the latest epoch: its metrics, and whether it is the best so far."""
    metrics, training, epochs = history[-1], vars(trainer.recipe.finetuning), trainer.recipe.finetuning.epochs
    best = best_epoch(history, training)
    num_images = trainer.steps_per_epoch * trainer.recipe.finetuning.batch_size
    speed = num_images / metrics.train_s if metrics.train_s else 0.0
    waits = f"waited {metrics.data_wait_s:.1f} s for data, {metrics.checkpoint_wait_s:.1f} s for checkpoints"
    note = (
        f"train loss {metrics.train_loss:.4f}, accuracy {metrics.train_accuracy:.4f}; "
        f"validation loss {metrics.validation_loss:.4f}, accuracy {metrics.validation_accuracy:.4f}; "
        f"{speed:,.0f} images/s, {metrics.seconds:.1f} s ({waits}); "
        f"best so far{'' if best == metrics.epoch else f': epoch {best}'}"
    )
    events.progress(EPOCHS, metrics.epoch, epochs, note, epoch=metrics.epoch)
    if is_last(history, training) and metrics.epoch < epochs:
        why = f"stopped after epoch {metrics.epoch} of {epochs}: no lower validation loss since epoch {best}"
        events.progress(EPOCHS, metrics.epoch, epochs, why, fraction=1.0, epoch=metrics.epoch)
