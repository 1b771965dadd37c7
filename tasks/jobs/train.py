"""Ray job: Ray Train's DDP, each rank on its own rows; goes on from the newest whole checkpoint of any attempt."""

import os
import time
from collections.abc import Callable
from typing import Any

from storage import manifest
from storage.uri import DatasetURI
from tasks.jobs import attempts, dashboard, driver, permanent, scale
from tasks.jobs.deadline import aside
from tasks.jobs.spec import TrainSpec
from tasks.learning.imports import quickly

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
    with quickly():
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

    started = time.monotonic()
    nodes = scale.nodes()
    given = scale.resolve(spec.workers, threads=spec.threads, nodes=nodes, needs=spec.needs)
    elastic = scale.limits(spec.workers)
    prepared = manifest.load(spec.source)
    numbers = range(elastic[0], elastic[1] + 1) if elastic else [given.workers]
    attempts.fewest_steps(spec.recipe["batch_size"], prepared, workers=numbers)
    loader = attempts.choose_loader(spec.recipe["loader"], prepared, has_idle_nodes=scale.has_idle_nodes(given, nodes))
    attempt = attempts.new_attempt(spec.scratch)
    # A worker that is frozen as a whole answers no health check; a rank that never reports keeps the others waiting.
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(spec.stall_s)
    os.environ["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"] = str(spec.stall_s)
    # On a busy cluster it waits for its turn: that it fits at all is known. Elastic workers are counted anew instead.
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(_COUNTED_ANEW_S if elastic else spec.deadline_s)
    try:
        fit(
            train_on_one_rank,
            loader=loader,
            prepared=spec.source,
            timeout_s=max(1, int(spec.stall_s)),
            train_loop_config={
                "spec": spec.model_dump_json(),
                "threads": given.threads,
                "attempt": attempt,
                "loader": loader,
            },
            scaling_config=ScalingConfig(
                num_workers=elastic or given.workers,
                use_gpu=given.use_gpu,
                resources_per_worker={"CPU": given.cpus} | ({"GPU": 1} if given.use_gpu else {}),
                accelerator_type=spec.needs.accelerator_type or None,
            ),
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
    finally:
        permanent.raise_left(spec.scratch.child(attempt))
    attempts.commit(spec, started=started, loader=loader)


def fit(
    loop: Callable[[dict[str, Any]], None], *, loader: str, prepared: DatasetURI, timeout_s: int, **configured: Any
) -> None:
    """Run `loop` on every rank, to its end.

    Args:
        loop: What each worker runs.
        loader: For `ray-data` it is Ray Train's own `TorchTrainer` with datasets. For others it is one that starts
            sooner, unless the dashboard shows trainings: it knows them by an actor that this one does without.
        prepared: What the workers train on.
        timeout_s: Seconds for which workers wait for each other in a collective.
        configured: What both kinds of trainer take: `train_loop_config`, `scaling_config`, `run_config`.
    """
    with quickly():
        if loader != attempts.RAY_DATA and not dashboard.shows_training():
            from tasks.jobs.trainer import LeanTrainer

            LeanTrainer(loop, timeout_s=timeout_s, **configured).fit()
            return
        from ray.train.torch import TorchConfig, TorchTrainer

        from tasks.jobs.ray_shards import RankShards
    if loader == attempts.RAY_DATA:
        made = manifest.load(prepared)
        shards = RankShards(prepared, {name: made.split(name) for name in attempts.SPLITS})
        configured |= {"datasets": shards.datasets(), "dataset_config": shards}
    trainer = TorchTrainer(loop, torch_config=TorchConfig(timeout_s=timeout_s), **configured)
    aside(trainer.fit)


def train_on_one_rank(config: dict[str, Any]) -> None:
    """What each Ray Train worker runs."""
    with quickly():
        from tasks.jobs import rank  # torch

    rank.train(config)


if __name__ == "__main__":
    driver.main("train", TrainSpec)
