"""Training function of a Ray Train worker."""

import contextlib
import dataclasses
import faulthandler
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, CheckpointUploadMode
from ray.train.backend import Backend
from ray.train.torch import TorchConfig, get_device, prepare_data_loader

from storage import error_policy, failpoints, manifest
from storage.statistics import EpochMetrics
from storage.uri import URI
from tasks.jobs import errors
from tasks.jobs.train import choices, train_loop
from tasks.jobs.train.choices import Assignment
from tasks.jobs.train.make_loader import RankContext
from tasks.learning import user_code
from tasks.learning.checkpoint import WrongResume
from tasks.learning.epoch_metrics import NonFiniteLoss, best_epoch
from tasks.resources import devices, scaling

EXIT_CODE = 86
"""Exit code of a worker that made no progress."""


def train(config: Assignment) -> None:
    """Train all epochs that are not done yet.

    A permanent error is left in a file for the driver, since Ray Train would retry it.
    """
    attempt = config["attempt"]
    if errors.has_saved_error(attempt):
        return  # this is the retry of a permanent error
    try:
        with watched(limit_s=config["spec"].limits.stall_s) as beat, user_code.wrap_user_errors():
            _train(config, beat=beat)
    except Exception as error:
        if not is_saved_on_every_rank(error, attempt):
            raise


def is_saved_on_every_rank(error: Exception, attempt: URI) -> bool:
    """Save an error after which no restart helps for the driver; return whether every rank has met it."""
    cause = errors.root_cause(error)  # the message of Ray Data's own error is its whole traceback
    is_on_every_rank = isinstance(cause, NonFiniteLoss | WrongResume)
    # A restart may help: Ray Train deletes old checkpoints while workers start, and Ray ends a task that uses much
    # memory when other work on the node needs it.
    may_pass = isinstance(cause, FileNotFoundError | PermissionError) or type(cause).__module__.startswith("ray.")
    if is_on_every_rank or (error_policy.is_permanent(cause) and not may_pass):
        errors.save_error(attempt, cause)
    return is_on_every_rank


def _train(config: Assignment, *, beat: Callable[[], None]) -> None:
    context, stage, scale = ray.train.get_context(), config["spec"].stage, config["scale"]
    failpoints.rank, world_size = context.get_world_rank(), context.get_world_size()
    threads = scaling.threads_here(scale.threads, sharing=context.get_local_world_size())
    windows, cores = None, threads * world_size
    if config["loader"] == "ray-data":
        from tasks.jobs.train import ray_loader

        windows = functools.partial(ray_loader.windows, world_size=world_size)
        cores = config["spec"].threads or int(ray.cluster_resources()["CPU"] - world_size * scale.cpus)
    rank_context = RankContext(
        rank=context.get_world_rank(),
        world_size=world_size,
        device=get_device() if scale.use_gpu else torch.device("cpu"),  # that `check_gpu` has tried out
        threads=threads,
        cores=cores,
        prepare=functools.partial(prepare_data_loader, add_dist_sampler=False),  # its rows stay as they are
        report=report,
        checkpoint_s=config["spec"].limits.checkpoint_s,
        is_preempted=lambda: ray.train.get_preemption_info() is not None,
        loader=config["loader"],
        windows=windows,
        beat=beat,
    )
    train_loop.train(stage, manifest.load(stage.prepared), config["attempt"], rank_context)


def report(folder: URI, history: list[EpochMetrics]) -> None:
    """Report the last epoch of `history` to Ray Train, on every rank; rank 0 has written its checkpoint to `folder`.

    The checkpoint stays there, written with the usual retries: an upload by Ray would give up after seconds. Ray Train
    keeps those with the highest `choices.SCORE`.
    """
    metrics, storage = history[-1], ray.train.get_context().get_storage()
    is_best = best_epoch(history) == metrics.epoch
    place = Checkpoint(f"{storage.experiment_fs_path}/{folder.name}", storage.storage_filesystem)
    ray.train.report(
        {
            "epoch": metrics.epoch,
            "validation_loss": metrics.validation_loss,
            choices.SCORE: metrics.epoch if is_best else 0,
        },
        checkpoint=place if ray.train.get_context().get_world_rank() == 0 else None,
        checkpoint_dir_name=folder.name,
        checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
    )


@dataclasses.dataclass
class CheckedTorchConfig(TorchConfig):
    """Ray Train's set-up of torch's process group, preceded by a check that each worker can use its GPU.

    Without a usable GPU, NCCL fails in the set-up, before a worker runs this project's code, with an error that names
    neither the node nor the reason, and that Ray Train and Prefect would retry.
    """

    @property
    def backend_cls(self) -> type[Backend]:
        """Return the backend that checks first."""
        return _CheckedBackend


class _CheckedBackend(TorchConfig().backend_cls):  # type: ignore[misc]  # Ray Train's own has no public name
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        if worker_group.get_resources_per_worker().get("GPU", 0):
            worker_group.execute(check_gpu)
        super().on_start(worker_group, backend_config)


def check_gpu() -> None:
    """Raise `UnusableGpu` if torch cannot use the GPU of this worker."""
    devices.choose("cuda", where=scaling.node_name(), number=get_device().index or 0)


@contextlib.contextmanager
def watched(*, limit_s: float) -> Iterator[Callable[[], None]]:
    """Yield a function to call at every sign of progress; end the process if it is not called for `limit_s` seconds.

    Ray Train restarts the worker then. Neither Ray's health check nor Prefect's timeouts notice a blocked training
    thread, for example in a collective that another rank never enters. The stacks of all threads go to standard error.
    """
    seen, ended = [time.monotonic()], threading.Event()

    def beat() -> None:
        seen[0] = time.monotonic()

    def watch() -> None:
        while not ended.wait(min(1.0, limit_s / 4)):
            if time.monotonic() - seen[0] > limit_s:
                print(f"WARNING: no progress for {limit_s:.0f} s: this worker exits and will be restarted", flush=True)
                faulthandler.dump_traceback(file=2)
                os._exit(EXIT_CODE)

    threading.Thread(target=watch, name="watchdog", daemon=True).start()
    try:
        yield beat
    finally:
        ended.set()
