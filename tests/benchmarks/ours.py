"""This project's arm: its training worker on a Ray as in a run, doing one piece of work per request."""

import argparse
import dataclasses
import functools
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from storage import manifest, process
from storage.uri import URI, DatasetURI, Root
from tasks.jobs.train.choices import RAY_DATA
from tasks.jobs.train.make_loader import make_loader
from tasks.jobs.train.train_loop import Checkpoints, model_of, reporter
from tasks.learning import pretrained, recipes
from tasks.learning.loop import Batch, Loader, Trainer, seed_everything
from tasks.learning.modeling import Classifier, resolve_precision
from tasks.runners import local_runner
from tasks.runners.local_runner import LocalRunner
from tasks.runners.session import LockingRunner, session
from tests.benchmarks.arm import passed, serve
from tests.jobs.raw import reader

LOADERS = ("resident", "streaming", "dataloader")
"""Loaders that run in the worker; with `--loader ray-data`, only that one is measured."""
_EPOCHS = 1000
"""More than are ever asked for: the schedule has to know their number."""


class Shortened:
    """A loader whose validation is one batch."""

    def __init__(self, loader: Loader) -> None:
        self.loader, self.num_train_rows, self.train_batches = loader, loader.num_train_rows, loader.train_batches

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        """One: an epoch of few steps has few rows to validate."""
        return itertools.islice(self.loader.validation_batches(batch_size=batch_size), 1)


def work(config: dict[str, Any]) -> None:
    """What each worker does."""
    import ray.train

    from tasks.jobs.train import worker as ray_train

    recipe, uri, scratch = recipes.from_dict(config["recipe"]), DatasetURI(config["prepared"]), URI(config["scratch"])
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    torch.set_num_threads(config["threads"])
    process.keep_memory()
    prepared, device = manifest.load(uri), torch.device("cpu")
    seed_everything(recipe.training.seed)

    def loader_of(kind: str) -> Loader:
        rows = ray_train.ray_data_rows(recipe) if kind == RAY_DATA else None
        share = reader(kind, rank=rank, world_size=world_size, prepare=ray_train.prepare, rows=rows)
        return make_loader(recipe, uri, prepared, share)

    loaders = {kind: loader_of(kind) for kind in ([RAY_DATA] if config["loader"] == RAY_DATA else LOADERS)}
    loader = Shortened(loaders[config["loader"]])
    model = Classifier(model_of(recipe, prepared))
    if config["weights"]:
        pretrained.start_from(model, pretrained.read_weights(Path(config["weights"])))
    precision = resolve_precision(recipe.training.precision, device, model)
    trainer = Trainer(recipe, model, loader, precision=precision, device=device)
    trainer.steps_per_epoch = min(trainer.steps_per_epoch, config["steps"] or trainer.steps_per_epoch)
    assert trainer.world_size == world_size
    resolved = {"workers": world_size, "device": "cpu", "precision": precision, "threads": config["threads"]}
    history: list[Any] = []
    writer = ThreadPoolExecutor(1)
    checkpoints = Checkpoints(scratch.child("attempt-1"), functools.partial(ray_train.report, every=1), writer)

    def epoch() -> dict[str, float]:
        started = time.perf_counter()
        number = len(history) + 1
        with ray_train.watched(limit_s=600) as beat:
            history.append(trainer.run_epoch(number, on_step=reporter(number, _EPOCHS, rank), on_batch=beat))
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "waited": history[-1].data_wait_s, "rows": float(epoch_rows)}

    def feed(chosen: Loader) -> dict[str, float]:
        epochs = itertools.count(len(history) + 1)
        return passed(lambda: chosen.train_batches(epoch=next(epochs), batch_size=trainer.local_batch_size))

    def checkpoint() -> dict[str, float]:
        about = {"parameters": {}, "resolved": resolved}
        # As after another epoch: Ray Train wants another folder for each.
        last = dataclasses.replace(history[-1], epoch=len(history) + 1)
        history.append(last)
        started = time.perf_counter()
        checkpoints.take(history, trainer, prepared=uri.fingerprint, fields=about)
        blocked = time.perf_counter() - started
        writer.submit(int).result()
        return {"seconds": blocked, "whole": time.perf_counter() - started}

    epoch_rows = trainer.steps_per_epoch * recipe.training.batch_size
    can = {"epoch": epoch, "checkpoint": checkpoint}
    can |= {kind: functools.partial(feed, chosen) for kind, chosen in loaders.items()}
    serve(can)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ours", description=__doc__)
    parser.add_argument("--prepared", required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--loader", choices=("resident", RAY_DATA), default="resident", help="what epochs are fed by")
    parser.add_argument("--weights", default="", help="fine-tune EfficientNet-Lite0 from this file")
    parser.add_argument("--steps", type=int, help="at most so many in an epoch")
    options = parser.parse_args()
    if "RAY_ADDRESS" in os.environ:
        train(options)
        return
    with session(Root(options.scratch), wanted=True, workers=options.workers) as cluster:
        assert isinstance(cluster, LockingRunner) and isinstance(cluster.runner, LocalRunner)
        env = local_runner.environment() | {"RAY_ADDRESS": cluster.runner.connect().address}
        command = [sys.executable, "-m", "tests.benchmarks.ours", *sys.argv[1:]]
        subprocess.run(command, env=env, check=True)


def train(options: argparse.Namespace) -> None:
    """What a training's driver does."""
    import ray
    from ray.train import CheckpointConfig, RunConfig, ScalingConfig

    from tasks.jobs.backends.ray import configure
    from tasks.jobs.train.job import fit

    cores = os.cpu_count() or 1
    ray.init(logging_level="WARNING")
    configure(max_cpus=cores)
    settings = {"epochs": _EPOCHS, "batch_size": options.batch_size, "precision": "auto"}
    if options.weights:
        settings |= {"model": "timm/tf_efficientnet_lite0", "start": options.weights, "backbone_lr_scale": 0.1}
    recipe = recipes.override(recipes.load("mnist-resnet18"), settings)
    fit(
        work,
        loader=options.loader,
        timeout_s=600,
        cores=cores,
        train_loop_config={
            "loader": options.loader,
            "recipe": recipe.to_dict(),
            "prepared": options.prepared,
            "scratch": options.scratch,
            "threads": max(1, cores // options.workers),
            "steps": options.steps,
            "weights": options.weights,
        },
        scaling_config=ScalingConfig(num_workers=options.workers, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name="attempt-1",
            storage_path=options.scratch,
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )


if __name__ == "__main__":
    main()
