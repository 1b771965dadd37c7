"""Ray job: Ray Train's DDP over Ray Data's shards; goes on from the newest whole checkpoint of any earlier attempt."""

import json
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import ray.data
import ray.train
import torch
import torch.distributed as dist
from ray.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    DataConfig,
    FailureConfig,
    RunConfig,
    ScalingConfig,
)
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from storage import files, hooks, manifest
from storage.hooks import reached
from storage.manifest import File, Manifest
from storage.uri import URI, DatasetURI
from tasks.jobs import driver, parts, permanent, scale
from tasks.jobs.loaders import make_loader
from tasks.jobs.spec import RANK, TrainSpec
from tasks.jobs.watchdog import watched
from tasks.learning import checkpoint, images
from tasks.learning.loop import (
    EpochMetrics,
    Trainer,
    check_steps,
    local_batch_size,
    seed_everything,
)
from tasks.learning.modeling import Classifier, ModelSpec, resolve_precision
from tasks.learning.recipes import Recipe

_MAX_FAILURES = 3
_MAX_PREEMPTIONS = 100
"""How often a node may be taken away by whoever lends it; that is nobody's fault, but not to go on for ever."""
_CHECKPOINTS = 4
"""How many checkpoints there are at once at most: two that are kept, one being written, and the committed one."""


def run(spec: TrainSpec) -> None:
    """Commit the best epoch's checkpoint; on CPUs in fp32 the same weights to the bit, cut off in between or not.

    Raises `ValueError` for what the cluster can never give and for a checkpoint that belongs to another run,
    `NonFiniteLoss` when training diverges.
    """
    started = time.monotonic()
    given = scale.resolve(spec.workers, threads=spec.threads, nodes=scale.nodes())
    prepared = manifest.load(spec.source)
    _check_batch_size(spec.recipe["batch_size"], prepared, workers=given.workers)
    attempt = _new_attempt(spec.scratch)
    # A worker that is frozen as a whole answers no health check; a rank that never reports keeps the others waiting.
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(spec.stall_s)
    os.environ["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"] = str(spec.stall_s)
    # On a busy cluster it waits for its turn: that it fits at all is known.
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(spec.deadline_s)
    trainer = TorchTrainer(
        train_on_one_rank,
        train_loop_config={"spec": spec.model_dump_json(), "threads": given.threads, "attempt": attempt},
        scaling_config=ScalingConfig(
            num_workers=given.workers,
            use_gpu=given.use_gpu,
            resources_per_worker={"CPU": given.cpus} | ({"GPU": 1} if given.use_gpu else {}),
        ),
        torch_config=TorchConfig(timeout_s=max(1, int(spec.stall_s))),
        datasets={split: parts.read(spec.source, parts.whole(prepared.split(split))) for split in Shards.splits},
        dataset_config=Shards(spec.source, prepared),
        run_config=RunConfig(
            name=attempt,
            storage_path=str(spec.scratch),
            failure_config=FailureConfig(
                max_failures=_MAX_FAILURES, max_preemption_failures=_MAX_PREEMPTIONS, controller_failure_limit=1
            ),
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="validation_loss", checkpoint_score_order="min"
            ),
        ),
    )
    try:
        trainer.fit()
    finally:
        permanent.raise_left(spec.scratch.child(attempt))
    if files.exists(spec.target.child(manifest.NAME)):
        return  # another run was first
    seconds = time.monotonic() - started
    about = {"seconds": seconds}
    checkpoint.commit(spec.scratch, spec.target, prepared=spec.source, initial=spec.beginning, statistics=about)


def _check_batch_size(batch_size: int, prepared: Manifest, *, workers: int) -> None:
    """Raise `WrongBatchSize`, as every worker would, before there is any."""
    for rank in range(workers):
        rows = sum(
            part.stop - part.start for part in parts.shard(prepared.split("train"), rank=rank, world_size=workers)
        )
        share = local_batch_size(batch_size, rank=rank, world_size=workers)
        check_steps(rows // share if share else 0, batch_size=batch_size, world_size=workers, num_rows=rows)


class Shards(DataConfig):
    """Gives every rank its own rows of each split, every row to exactly one rank; Ray's equal split would drop some."""

    splits = ("train", "validation")

    def __init__(self, uri: DatasetURI, prepared: Manifest) -> None:
        super().__init__()
        self._uri = uri
        self._listed = {split: prepared.split(split) for split in self.splits}

    def configure(self, datasets: dict[str, Any], world_size: int, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """One iterator for each rank and each of `datasets`."""
        return [
            {name: self._shard(name, rank, world_size).iterator() for name in datasets} for rank in range(world_size)
        ]

    def _shard(self, split: str, rank: int, world_size: int) -> ray.data.Dataset:
        listed: list[File] = self._listed[split]
        return parts.read(self._uri, parts.shard(listed, rank=rank, world_size=world_size))


def train_on_one_rank(config: dict[str, Any]) -> None:
    """What each Ray Train worker runs: all epochs that are not done yet, a checkpoint after each.

    An error that another try would meet again is left for the driver: Ray Train would try it all the same.
    """
    spec = TrainSpec.model_validate_json(config["spec"])
    attempt = spec.scratch.child(config["attempt"])
    if permanent.is_left(attempt):
        return  # this is that other try
    try:
        with watched(limit_s=spec.stall_s) as beat:
            _train(spec, attempt, threads=config["threads"], beat=beat)
    except Exception as error:
        cause = driver.root_cause(error)  # what Ray Data raised says its whole traceback
        permanent.leave(attempt, cause)
        if not isinstance(cause, permanent.COMMON):
            raise


def _train(spec: TrainSpec, attempt: URI, *, threads: int, beat: Callable[[], None]) -> None:
    recipe = Recipe(**spec.recipe)
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    hooks.rank = rank
    driver.say(RANK, rank=rank)
    device = get_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)  # NCCL sends objects through the current one, which is else the first for all
    threads = _least(scale.threads_here(threads, sharing=context.get_local_world_size()), world_size)
    torch.set_num_threads(threads)
    prepared = manifest.load(spec.source)
    seed_everything(recipe.seed)
    precision = resolve_precision(recipe.precision, device)
    resolved = {"workers": world_size, "device": device.type, "precision": precision, "threads": threads}
    about = {"parameters": spec.parameters, "resolved": resolved}
    loader = make_loader(recipe, prepared, rank=rank, world_size=world_size, device=device)
    model = Classifier(model_of(recipe, prepared))
    if spec.beginning:
        checkpoint.begin_with(model, spec.beginning)
    trainer = Trainer(recipe, model, loader, precision=precision, device=device)
    print(f"{recipe.model} on {device.type}, {precision}, {threads} threads, {loader.num_train_rows():,} training rows")
    files.check_space(spec.scratch, needed=_CHECKPOINTS * checkpoint.size_of(trainer))
    history = _resume(spec, trainer, about)
    while len(history) < recipe.epochs and not _committed(spec, trainer):
        epoch = len(history) + 1

        def on_batch(at: str = f"epoch {epoch}") -> None:
            beat()
            reached("step", at)

        history.append(trainer.run_epoch(epoch, on_step=reporter(epoch, recipe.epochs, rank), on_batch=on_batch))
        if reached("report", f"epoch {epoch}") == "leave":
            return
        report_epoch(history, trainer, attempt, rank=rank, prepared=spec.source.fingerprint, about=about)
        beat()


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
    torch.set_num_threads(about["resolved"]["threads"])
    history = checkpoint.restore(URI(chosen[0]), trainer, prepared=spec.source.fingerprint, about=about)
    if trainer.rank == 0:
        share = len(history) / trainer.recipe.epochs
        note = "going on from the newest checkpoint"
        driver.progress("epochs done before", len(history), len(history), note, fraction=share)
    return history


def report_epoch(
    history: list[EpochMetrics], trainer: Trainer, attempt: URI, *, rank: int, prepared: str, about: dict[str, Any]
) -> None:
    """Save the state after the latest epoch below `attempt`, and tell Ray Train and whoever follows of it."""
    metrics = history[-1]
    name = f"epoch-{metrics.epoch:04d}"
    folder = attempt.child(name)
    if rank == 0:
        checkpoint.save(folder, trainer, history, prepared=prepared, about=about)
    # Written where it stays, with the patience that everything else is written with; Ray's own upload has seconds.
    ray.train.report(
        {"epoch": metrics.epoch, "validation_loss": metrics.validation_loss},
        checkpoint=Checkpoint(str(folder)) if rank == 0 else None,
        checkpoint_dir_name=name,
        checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
    )
    if rank == 0:
        note = f"validation loss {metrics.validation_loss:.4f}, accuracy {metrics.validation_accuracy:.4f}"
        driver.progress("epochs", metrics.epoch, trainer.recipe.epochs, note, epoch=metrics.epoch)


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


def _new_attempt(scratch: URI) -> str:
    """The name of a run folder that no attempt has: Ray Train's own state of an earlier one is never trusted."""
    number = max(checkpoint.attempts(scratch), default=0) + 1
    claim = json.dumps({"token": uuid.uuid4().hex}).encode()  # so that it is known again when a reply is lost
    while True:
        try:
            files.create(scratch.child(f"attempt-{number}/_attempt.json"), claim)
        except FileExistsError:
            number += 1
        else:
            return f"attempt-{number}"


if __name__ == "__main__":
    driver.main("train", TrainSpec)
