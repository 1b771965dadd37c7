"""What each Ray Train worker runs."""

import functools
from collections.abc import Callable
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, CheckpointUploadMode
from ray.train.torch import get_device, prepare_data_loader

from storage import hooks, manifest
from storage.manifest import Manifest
from storage.uri import URI
from tasks.jobs import attempts, driver, epochs, permanent, scale
from tasks.jobs.loaders import RowSource
from tasks.jobs.spec import RANK, TrainSpec
from tasks.jobs.watchdog import watched
from tasks.learning import images
from tasks.learning.epoch import EpochMetrics

prepare = functools.partial(prepare_data_loader, add_dist_sampler=False)
"""Makes a DataLoader one whose batches are on the worker's device; which rows it gives is said already."""


def train(config: dict[str, Any]) -> None:
    """All epochs that are not done yet, a checkpoint after each.

    An error that another try would meet again is left for the driver: Ray Train would try it all the same.
    """
    spec = TrainSpec.model_validate_json(config["spec"])
    attempt = spec.scratch.child(config["attempt"])
    if permanent.is_left(attempt):
        return  # this is that other try
    try:
        with watched(limit_s=spec.stall_s) as beat:
            _train(spec, attempt, loader=config["loader"], threads=config["threads"], beat=beat)
    except Exception as error:
        cause = driver.root_cause(error)  # what Ray Data raised says its whole traceback
        permanent.leave(attempt, cause)
        if not isinstance(cause, permanent.COMMON):
            raise


def _train(spec: TrainSpec, attempt: URI, *, loader: str, threads: int, beat: Callable[[], None]) -> None:
    context = ray.train.get_context()
    rank = hooks.rank = context.get_world_rank()
    driver.say(RANK, rank=rank)
    prepared = manifest.load(spec.source)
    device, rows = get_device(), None
    if loader == attempts.RAY_DATA:
        rows = ray_data_rows(prepared, device, prefetch_batches=spec.recipe["prefetch_batches"])
    here = epochs.Place(
        rank=rank,
        world_size=context.get_world_size(),
        device=device,
        threads=scale.threads_here(threads, sharing=context.get_local_world_size()),
        prepare=prepare,
        report=report,
        loader=loader,
        rows=rows,
        beat=beat,
    )
    epochs.train(spec, prepared, attempt, here)


def ray_data_rows(prepared: Manifest, device: torch.device, *, prefetch_batches: int) -> RowSource:
    """Return the rows that Ray Data reads for this rank; all ranks have to ask."""
    from tasks.jobs.ray_loader import RayDataRows

    shards = {name: ray.train.get_dataset_shard(name) for name in attempts.SPLITS}
    shape = images.shape_of(prepared.columns["metadata"])
    return RayDataRows(shards, shape=shape, device=device, prefetch_batches=prefetch_batches)


def report(folder: URI, history: list[EpochMetrics]) -> None:
    """Tell Ray Train, on every rank, of the checkpoint of the last epoch in `history`, which rank 0 wrote to `folder`.

    It stays where it was written, with the patience that everything else is written with; Ray's own upload has seconds.
    """
    metrics = history[-1]
    ray.train.report(
        {"epoch": metrics.epoch, "validation_loss": metrics.validation_loss},
        checkpoint=Checkpoint(str(folder)) if ray.train.get_context().get_world_rank() == 0 else None,
        checkpoint_dir_name=folder.name,
        checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
    )
