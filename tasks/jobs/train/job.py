"""The train job: DDP of Ray Train, each rank on its own rows, or all in this process without Ray."""

import functools
import os
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

from storage import manifest, s3
from storage.manifest import Manifest
from storage.process import gc_paused
from storage.terminal import count
from tasks.jobs import errors, tuned
from tasks.jobs.deadline import run_in_thread
from tasks.jobs.local_data import LocalData
from tasks.jobs.spec import JobSpec
from tasks.jobs.train import attempts, choices, continuing
from tasks.jobs.train.choices import Assignment
from tasks.learning.checkpoint import WrongResume
from tasks.learning.models import LITE0
from tasks.resources import scaling
from tasks.resources.scaling import Scale
from tasks.stages import Train

if TYPE_CHECKING:
    from ray.train.torch import TorchConfig

_MAX_FAILURES = 3


def run(spec: JobSpec[Train], data: LocalData) -> None:
    """Commit the best epoch's checkpoint; on CPUs in fp32 its weights are bit-identical, also after an interruption.

    Raises `ValueError` for what the cluster does not have in time and for a checkpoint that belongs to another run,
    `NonFiniteLoss` if training diverges.
    """
    started, stage = time.monotonic(), spec.stage
    prepared = manifest.load(stage.prepared)
    threads = spec.threads or scaling.cores_here()
    if stage.recipe.training.kind == "probe":
        _probe_job().train(stage, prepared, attempts.new_attempt(stage.scratch), threads=threads)
        attempts.finish(stage, prepared, started=started)
        return
    if stage.embeddings and stage.recipe.model != LITE0:  # whose head is known
        _probe_job().check_head(stage, prepared)
    scale = _scale(spec) if data.is_ray else None
    workers = scale.workers if scale else 1
    loader = choices.choose_loader(stage, prepared, workers=workers)
    continuing.begin(stage, prepared, workers=workers)
    attempt = attempts.new_attempt(stage.scratch)
    if scale:
        _train_on_ray(prepared, Assignment(spec=spec, attempt=attempt, loader=loader, scale=scale))
    else:
        with gc_paused():
            from tasks.jobs.train import train_loop  # imports torch

        train_loop.train_here(spec, prepared, attempt, loader=loader)
    add = functools.partial(_probe_job().average, stage, prepared, threads=threads) if stage.embeddings else None
    attempts.finish(stage, prepared, started=started, add=add)


def _probe_job() -> ModuleType:
    with gc_paused():
        from tasks.jobs.train import probe_job  # imports torch
    return probe_job


def _scale(spec: JobSpec[Train]) -> Scale:
    """Choose the workers; those of an interrupted training, if `auto` chose their number."""
    from tasks.jobs.ray_data import resolve_workers

    before = attempts.workers_before(spec.stage)
    try:
        return resolve_workers(spec, before or spec.stage.workers)
    except ValueError as error:
        if not before:
            raise
        raise WrongResume(
            f"the interrupted training used {count(before, 'worker')}, more than this cluster has ({error}); run "
            "again on a cluster that has them, or start over with --refresh or another --workers"
        ) from error


def _train_on_ray(prepared: Manifest, assignment: Assignment) -> None:
    """Train to the last epoch in workers of Ray Train.

    A small machine has a trainer that starts faster, but has no actor that splits datasets.
    """
    spec, scale = assignment["spec"], assignment["scale"]
    stage, limits = spec.stage, spec.limits
    # A frozen worker answers no health check; a rank that never reports keeps the others waiting.
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(limits.stall_s)
    os.environ["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"] = str(limits.stall_s)
    # On a busy cluster, workers wait until they can start: they are known to fit.
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(limits.stage_s)
    configured = _configuration(assignment)
    try:
        if assignment["loader"] != "ray-data" and tuned.is_on(spec.threads):
            with gc_paused():
                from tasks.jobs.tuned.trainer import LeanTrainer

            if scale.workers > 1 or scale.use_gpu:  # else torch would delay the start of the only worker
                configured["backend_config"] = _torch_config(limits.stall_s)
            LeanTrainer(train_on_one_rank, **configured).fit()
            return
        with gc_paused():
            from ray.train.torch import TorchTrainer

            from tasks.jobs.train import ray_loader

        if assignment["loader"] == "ray-data":
            configured["datasets"] = ray_loader.datasets(stage.prepared, prepared, stage.recipe)
            configured["dataset_config"] = ray_loader.DATA_CONFIG
        config = _torch_config(limits.stall_s)
        run_in_thread(TorchTrainer(train_on_one_rank, torch_config=config, **configured).fit)
    finally:
        errors.raise_saved_error(assignment["attempt"])


def _configuration(assignment: Assignment) -> dict[str, Any]:
    with gc_paused():
        from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig

    spec, attempt, scale = assignment["spec"], assignment["attempt"], assignment["scale"]
    return {
        "train_loop_config": assignment,
        "scaling_config": ScalingConfig(
            num_workers=scale.workers,
            use_gpu=scale.use_gpu,
            resources_per_worker={"CPU": scale.cpus} | ({"GPU": 1} if scale.use_gpu else {}),
            accelerator_type=spec.needs.accelerator_type or None,
        ),
        "run_config": RunConfig(
            name=attempt.name,
            storage_path=attempt.parent.removeprefix("s3://"),
            storage_filesystem=s3.for_pyarrow() if attempt.is_s3 else None,
            logging_config=LoggingConfig(log_level="WARNING"),
            failure_config=FailureConfig(max_failures=_MAX_FAILURES, controller_failure_limit=1),
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute=choices.SCORE, checkpoint_score_order="max"
            ),
        ),
    }


def _torch_config(stall_s: float) -> "TorchConfig":
    """Return the set-up of a process group whose workers wait `stall_s` seconds for each other in a collective."""
    with gc_paused():
        from tasks.jobs.train.worker import CheckedTorchConfig

    return CheckedTorchConfig(timeout_s=max(1, int(stall_s)))


def train_on_one_rank(config: Assignment) -> None:
    """Run the training of one rank, in a Ray Train worker."""
    with gc_paused():
        from tasks.jobs.train import worker  # imports torch

    worker.train(config)
