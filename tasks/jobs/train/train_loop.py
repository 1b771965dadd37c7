"""The training loop of one rank, with or without Ray: all epochs that are not done yet, and their checkpoints."""

import dataclasses
import math
import platform
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

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
from tasks.jobs.train.make_loader import RankContext, make_loader
from tasks.learning import checkpoint, hardware, images, training_state, user_code
from tasks.learning.epoch_metrics import best_epoch, decoding_limit, gpu_use, is_last
from tasks.learning.loaders import to_device
from tasks.learning.loop import Trainer, seed_everything
from tasks.learning.modeling import Classifier, resolve_precision, set_arithmetic
from tasks.learning.step import keep_compiled_code
from tasks.resources import devices, machine, scaling
from tasks.stages import Train

_CHECKPOINTS = 5
"""Most checkpoints that exist at once: of the two latest best epochs, of the newest one, and two being written."""
_T = TypeVar("_T")
_Snapshot = tuple[URI, list[EpochMetrics], Callable[[URI], None]]
"""A folder, the history so far, and a function that writes the state after it to the folder."""


def train(stage: Train, prepared: Manifest, attempt: URI, context: RankContext) -> None:
    """Train `stage.recipe` on `prepared` to its last epoch, starting from the newest complete checkpoint, if any."""
    recipe, rank, kind = choices.resolved(stage.recipe, prepared), context.rank, context.device.type
    if kind == "cuda":
        torch.cuda.set_device(context.device)  # NCCL sends objects through the current device, by default the first
    threads = min(_gathered(context.threads, context.world_size))  # every rank must split its sums in the same way
    torch.set_num_threads(threads)
    if kind == "cpu" or recipe.data.store == images.FILES:  # decoding needs it, too
        process.keep_memory()
    seed_everything(recipe.finetuning.seed)
    if context.loader == "auto":
        num_bytes = prepared.rows * math.prod(images.shape_of(prepared.columns["metadata"]))
        on_host = scaling.memory_here() // context.world_size  # which reads them; all ranks may be on this machine
        on_gpu = torch.cuda.mem_get_info(context.device)[0] if kind == "cuda" else 0
        free = _gathered(min(on_gpu, on_host), context.world_size) if on_gpu else []
        context = dataclasses.replace(context, loader=choices.resident_or_streaming(num_bytes, free))
    if kind == "cuda":
        keep_compiled_code()
        reason = choices.why_eager(recipe, workers=context.world_size, loader=context.loader)
        if recipe.resources.step == "auto" and reason:
            recipe = dataclasses.replace(recipe, resources=dataclasses.replace(recipe.resources, step="eager"))
            if rank == 0:
                events.write_line(f"steps are eager, not CUDA graphs, with {reason}")
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
        loader=context.loader,
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
    files.check_space(stage.scratch, needed=(_CHECKPOINTS + 2 * (recipe.finetuning.constant_epochs > 0)) * size)
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
        checkpoints = Checkpoints(attempt, context, writer)
        while not is_last(history, vars(recipe.finetuning)):
            # Another run may have committed the target; rank 0 looks.
            if _gathered(rank == 0 and manifest.is_committed(stage.target), trainer.world_size)[0]:
                break
            if history and len(history) == recipe.finetuning.constant_epochs:
                checkpoints.finish()
                if rank == 0:
                    attempts.keep(stage.scratch, history)
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
    threads = scaling.threads_here(spec.threads or scaling.cores_here(), sharing=1)
    context = RankContext(
        rank=0,
        world_size=1,
        device=device,
        threads=threads,
        cores=threads,
        prepare=lambda batches: (to_device(device, batch) for batch in batches),
        report=_keep_newest_and_best,
        checkpoint_s=spec.limits.checkpoint_s,
        loader=loader,
    )
    with user_code.wrap_user_errors():
        train(spec.stage, prepared, attempt, context)


def _keep_newest_and_best(folder: URI, history: list[EpochMetrics]) -> None:
    """Remove all checkpoints of an attempt that are older than the one in `folder`, but the best one."""
    for name in files.children(folder.parent):
        epoch = int(name.removeprefix("epoch-")) if name.startswith("epoch-") else len(history)
        if epoch < len(history) and epoch != best_epoch(history):
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
    """Writer of checkpoints while training goes on; reports each on every rank once it is complete.

    They are due after the first epoch of an attempt, after the last, before the learning rate decays, and
    `checkpoint_s` after the previous ones were complete, so that slow storage never holds up the training. Then the
    state of the best epoch, which waits in memory, is written, and after it the latest state.
    """

    def __init__(self, attempt: URI, context: RankContext, writer: Executor) -> None:
        self.attempt, self.context, self.writer = attempt, context, writer
        self._unwritten: list[_Snapshot] = []  # of the best epoch, unless its checkpoint is written
        self._unreported: list[tuple[URI, list[EpochMetrics]]] = []  # of the latest checkpoints
        self._completed_at: Future[float] = Future()  # of the latest checkpoints, by `time.monotonic`
        self._completed_at.set_result(-math.inf)

    def take(self, history: list[EpochMetrics], trainer: Trainer, **about: Any) -> None:
        """Copy the state after the latest epoch if it is needed; start to write checkpoints if they are due.

        `about` is what `training_state.take` also needs. Raises the error of the previous checkpoints.
        """
        is_best, is_end = best_epoch(history) == len(history), is_last(history, vars(trainer.recipe.finetuning))
        is_end |= len(history) == trainer.recipe.finetuning.constant_epochs  # which is kept
        is_complete = self._completed_at.done()
        since_s = time.monotonic() - self._completed_at.result() if is_complete else 0.0
        is_time = since_s >= self.context.checkpoint_s
        is_complete, is_time = _gathered((is_complete, is_time), trainer.world_size)[0]  # rank 0 decides
        if is_complete:
            self.finish(1)  # Ray Train takes one per health check: a second one would wait
        is_due = is_end or is_time or self.context.is_preempted()
        if is_due:
            self.finish()
        if is_best:
            self._unwritten = []  # before more memory is taken
        if is_best or is_due:
            write = (lambda folder: None) if trainer.rank else training_state.take(trainer, history, **about)
            self._unwritten.append((self.attempt.child(f"epoch-{len(history):04d}"), list(history), write))
        if is_due:
            self._unreported = [(folder, history) for folder, history, _ in self._unwritten]
            self._completed_at = self.writer.submit(_write, self._unwritten)
            self._unwritten = []
        if trainer.rank == 0:
            is_encoded = trainer.recipe.data.store == images.FILES
            _tell_epoch(history, trainer, cores=self.context.cores if is_encoded else 0)

    def finish(self, most: int = 2) -> None:
        """Wait until the latest checkpoints are complete, of which there are two at most; report some or all."""
        self._completed_at.result()
        for folder, history in self._unreported[:most]:
            self.context.report(folder, history)
        del self._unreported[:most]


def _write(snapshots: Iterable[_Snapshot]) -> float:
    for folder, _, write in snapshots:
        write(folder)
    return time.monotonic()


def _tell_epoch(history: list[EpochMetrics], trainer: Trainer, *, cores: int) -> None:
    """Report the latest epoch, whose images `cores` decoded: its metrics, and whether it is the best so far."""
    metrics, training, epochs = history[-1], vars(trainer.recipe.finetuning), trainer.recipe.finetuning.epochs
    best = best_epoch(history)
    num_images = trainer.steps_per_epoch * trainer.recipe.finetuning.batch_size
    speed = num_images / metrics.train_s if metrics.train_s else 0.0
    waits = f"waited {metrics.data_wait_s:.1f} s for data, {metrics.checkpoint_wait_s:.1f} s for checkpoints"
    note = (
        f"train loss {metrics.train_loss:.4f}, accuracy {metrics.train_accuracy:.4f}; "
        f"validation loss {metrics.validation_loss:.4f}, accuracy {metrics.validation_accuracy:.4f}; "
        f"{speed:,.0f} images/s, {metrics.seconds:.1f} s ({waits}); "
        f"{decoding_limit(metrics, cores)}{gpu_use(metrics)}"
        f"best so far{'' if best == metrics.epoch else f': epoch {best}'}"
    )
    events.progress(EPOCHS, metrics.epoch, epochs, note, epoch=metrics.epoch)
    if is_last(history, training) and metrics.epoch < epochs:
        why = f"stopped after epoch {metrics.epoch} of {epochs}: no lower validation loss since epoch {best}"
        events.progress(EPOCHS, metrics.epoch, epochs, why, fraction=1.0, epoch=metrics.epoch)
