"""Ray job: Ray Train's DDP, each rank on its own rows; goes on from the newest whole checkpoint of any attempt."""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import ray.train
from ray.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    FailureConfig,
    RunConfig,
    ScalingConfig,
)
from ray.train.torch import TorchConfig, get_device, prepare_data_loader

from storage import hooks, manifest
from storage.uri import URI
from tasks.jobs import driver, epochs, permanent, scale
from tasks.jobs.spec import RANK, TrainSpec
from tasks.jobs.trainer import LeanTrainer
from tasks.jobs.watchdog import watched
from tasks.learning.loop import EpochMetrics

prepare = functools.partial(prepare_data_loader, add_dist_sampler=False)
"""Makes a DataLoader one whose batches are on the worker's device; which rows it gives is said already."""
_MAX_FAILURES = 3
_MAX_PREEMPTIONS = 100
"""How often a node may be taken away by whoever lends it; that is nobody's fault, but not to go on for ever."""
_COUNTED_ANEW_S = 30.0
"""How long elastic workers are waited for: Ray's first count after a node was lost, up to 20 s old, still has it."""


def run(spec: TrainSpec) -> None:
    """Commit the best epoch's checkpoint; on CPUs in fp32 the same weights to the bit, cut off in between or not.

    Raises `ValueError` for what the cluster can never give and for a checkpoint that belongs to another run,
    `NonFiniteLoss` when training diverges.
    """
    started = time.monotonic()
    given = scale.resolve(spec.workers, threads=spec.threads, nodes=scale.nodes(), needs=spec.needs)
    elastic = scale.limits(spec.workers)
    prepared = manifest.load(spec.source)
    numbers = range(elastic[0], elastic[1] + 1) if elastic else [given.workers]
    epochs.fewest_steps(spec.recipe["batch_size"], prepared, workers=numbers)
    attempt = epochs.new_attempt(spec.scratch)
    # A worker that is frozen as a whole answers no health check; a rank that never reports keeps the others waiting.
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(spec.stall_s)
    os.environ["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"] = str(spec.stall_s)
    # On a busy cluster it waits for its turn: that it fits at all is known. Elastic workers are counted anew instead.
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(_COUNTED_ANEW_S if elastic else spec.deadline_s)
    trainer = LeanTrainer(
        train_on_one_rank,
        train_loop_config={"spec": spec.model_dump_json(), "threads": given.threads, "attempt": attempt},
        scaling_config=ScalingConfig(
            num_workers=elastic or given.workers,
            use_gpu=given.use_gpu,
            resources_per_worker={"CPU": given.cpus} | ({"GPU": 1} if given.use_gpu else {}),
            accelerator_type=spec.needs.accelerator_type or None,
        ),
        torch_config=TorchConfig(timeout_s=max(1, int(spec.stall_s))),
        run_config=RunConfig(
            name=attempt,
            storage_path=str(spec.scratch),
            failure_config=FailureConfig(
                max_failures=_MAX_FAILURES,
                max_preemption_failures=_MAX_PREEMPTIONS,
                controller_failure_limit=_MAX_PREEMPTIONS if elastic else 1,
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
    epochs.commit(spec, started=started)


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
    context = ray.train.get_context()
    rank = hooks.rank = context.get_world_rank()
    driver.say(RANK, rank=rank)
    prepared = manifest.load(spec.source)
    here = epochs.Place(
        rank=rank,
        world_size=context.get_world_size(),
        device=get_device(),
        threads=scale.threads_here(threads, sharing=context.get_local_world_size()),
        prepare=prepare,
        report=report,
        beat=beat,
    )
    epochs.train(spec, prepared, attempt, here)


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


if __name__ == "__main__":
    driver.main("train", TrainSpec)
