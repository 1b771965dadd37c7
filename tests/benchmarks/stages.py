"""Lines 1 to 8 and 13: one stage of this project compared with the same work by hand."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from storage import manifest
from storage.terminal import count
from storage.uri import DatasetURI
from tasks.runners.local_runner import LocalRunner
from tasks.runners.session import LockingRunner, session
from tests.benchmarks import data, ray_tutorial
from tests.benchmarks.arm import Arm, alone, started
from tests.benchmarks.bench import Bench, rate, rate_of, seconds_of
from tests.benchmarks.ratios import Ratio, at_most, in_turn
from tests.learning import lite0

_FEEDING = {"resident": at_most(1.05), "streaming": at_most(3.3), "dataloader": None}
"""The loaders; the tutorials' own has no target."""
_RAY = "PIPELINE_BENCHMARK_RAY"
"""In the environment of every process of a Ray, and of no others."""


@contextlib.contextmanager
def _arms(
    bench: Bench, *ours: str, prepared: DatasetURI | None = None, plain_arguments: Sequence[str] = (), **plain: Any
) -> Iterator[tuple[Arm, Arm]]:
    """Both arms on the same rows: the pipeline's with more arguments, the script's started in another way."""
    (store := bench.fresh("store")).mkdir()
    shared = ["--prepared", prepared or bench.prepared, "--steps", str(bench.steps)]
    with (
        started("ours", *shared, "--scratch", str(bench.fresh("scratch")), *ours) as our_arm,
        started("plain", *shared, "--out", str(store), *plain_arguments, **plain) as plain_arm,
    ):
        yield our_arm, plain_arm


def _beside(ours: Arm, work: str, plain: Arm, other: str, *, pairs: int) -> tuple[list[float], list[float]]:
    """Rows in a second of some work of both, in turn; the pipeline's processes stand still meanwhile."""
    ours.ask(work), plain.ask(other)
    return in_turn(rate_of(ours, work), alone(rate_of(plain, other), beside=ours.mark), pairs=pairs)


def ingest(bench: Bench) -> Iterator[Ratio]:
    """1: from images in memory to Parquet on the disk."""
    times = 16
    arguments = ["--mirror", bench.source, "--times", str(times), "--out", str(bench.fresh("ingest"))]
    with started("ingest", *arguments) as arm:
        arm.ask("ours"), arm.ask("plain")
        ours, plain = in_turn(rate_of(arm, "ours"), rate_of(arm, "plain"), pairs=bench.pairs)
        what = f"ingest, {times}x: ours / plain `pq.write_table`"
        yield Ratio(number=1, what=what, ours=ours, other=plain, unit="rows/s", target=at_most(1.11))


def training(bench: Bench) -> Iterator[Ratio]:
    """2, 3, 4 and 8: feeding, steps and checkpoints of one worker."""
    with _arms(bench) as (ours, plain):
        for work, target in _FEEDING.items():
            mine, other = _beside(ours, work, plain, "feed", pairs=bench.pairs)
            what = f"feeding, batches of 128: {work} / slices of a tensor"
            if target and work == "streaming":  # which reads each part anew: few rows, and that weighs most
                target = bench.full(target)
            yield Ratio(number=2, what=what, ours=mine, other=other, unit="rows/s", target=target)
        yield from _epochs(bench, ours, plain, number=3, loader="resident")
        whole: list[float] = []

        def checkpoint() -> float:
            answer = ours.ask("checkpoint")
            whole.append(answer["whole"])
            return answer["seconds"]

        mine, other = in_turn(checkpoint, alone(seconds_of(plain, "checkpoint"), beside=ours.mark), pairs=bench.pairs)
        what = "checkpoint: blocked in ours / `torch.save` and copy"
        yield Ratio(number=8, what=what, ours=mine, other=other, unit="s", target=at_most(1.5))
        what = "checkpoint: until it is whole, hashed and flushed / `torch.save` and copy"
        yield Ratio(number=8, what=what, ours=whole, other=other, unit="s")


def ray_data(bench: Bench) -> Iterator[Ratio]:
    """13 and 14: feeding, waiting and steps of one worker that Ray Data reads for."""
    with _arms(bench, "--loader", "ray-data") as (ours, plain):
        mine, other = _beside(ours, "ray-data", plain, "feed", pairs=bench.pairs)
        what = "feeding, batches of 128: ray-data / slices of a tensor"
        yield Ratio(number=13, what=what, ours=mine, other=other, unit="rows/s")
        yield from _epochs(bench, ours, plain, number=13, loader="ray-data")


def _epochs(bench: Bench, ours: Arm, plain: Arm, *, number: int, loader: str) -> Iterator[Ratio]:
    """Waiting for data in epochs of ours, and their pace beside the script's."""
    ours.ask("epoch"), plain.ask("epoch")
    waited: list[float] = []

    def epoch() -> float:
        answer = ours.ask("epoch")
        waited.append(answer["waited"] / answer["seconds"])
        return rate(answer)

    mine, other = in_turn(epoch, alone(rate_of(plain, "epoch"), beside=ours.mark), pairs=bench.pairs)
    is_judged = loader == "resident"
    what = f"waiting for data / epoch, {loader}"
    target = at_most(0.01) if is_judged else None
    yield Ratio(number=number, what=what, ours=waited, other=[1.0] * len(waited), unit="", target=target)
    what = f"training, 1 worker, {loader}: ours / plain"
    target = at_most(1.03) if is_judged else None
    yield Ratio(number=number + 1, what=what, ours=mine, other=other, unit="images/s", target=target)


def fine_tuning(bench: Bench) -> Iterator[Ratio]:
    """15: steps of EfficientNet-Lite0 from its ImageNet weights, two groups of weights, images of 64 x 64 pixels."""
    folder = bench.fresh("weights")
    folder.mkdir()
    how = ["--weights", str(lite0.write(folder)), "--batch-size", "32"]
    with _arms(bench, *how, prepared=bench.photos, plain_arguments=how) as (ours, plain):
        mine, other = _beside(ours, "epoch", plain, "epoch", pairs=bench.pairs)
        what = "fine-tuning, 1 worker, batches of 32: ours / plain"
        yield Ratio(number=15, what=what, ours=mine, other=other, unit="images/s", target=at_most(1.05))


def ddp(bench: Bench) -> Iterator[Ratio]:
    """6: two workers with one thread each."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    with _arms(bench, "--workers", "2", launcher=torchrun, threads=1) as (ours, plain):
        mine, other = _beside(ours, "epoch", plain, "epoch", pairs=bench.pairs)
        what = "training, 2 workers x 1 thread: ours / torchrun"
        yield Ratio(number=6, what=what, ours=mine, other=other, unit="images/s", target=at_most(1.03))


def notebook(bench: Bench) -> Iterator[Ratio]:
    """5: a whole training as in Ray's tutorials, with their defaults, Ray running in both."""
    split, training = bench.splits["train"], bench.recipe.training
    num_rows = sum(file.rows or 0 for file in manifest.load(bench.prepared).split("train"))
    parquet = bench.fresh("notebook").with_suffix(".parquet")
    ray_tutorial.write(parquet, split.images[:num_rows], split.labels[:num_rows])
    arguments = ["--parquet", str(parquet), "--epochs", str(training.epochs)]
    arguments += ["--batch-size", str(training.batch_size)]

    def theirs() -> float:
        printed = bench.module("ray_tutorial", *arguments, "--out", str(bench.fresh("notebook")))
        return float(printed.rpartition("seconds ")[2].split()[0])

    def mine() -> float:
        with session(bench.root, wanted=True, workers=None) as cluster:
            assert isinstance(cluster, LockingRunner) and isinstance(cluster.runner, LocalRunner)
            cluster.runner.connect()
            begun = time.perf_counter()
            bench.store.train(cluster, bench.prepared, bench.recipe, workers=1)
            return time.perf_counter() - begun

    ours, other = in_turn(mine, theirs, pairs=bench.few_pairs)
    what = f"training, {count(training.epochs, 'epoch')}: ours / the notebook of Ray's tutorials"
    yield Ratio(number=5, what=what, ours=ours, other=other, unit="s", target=bench.full(at_most(0.5)))


def prediction(bench: Bench) -> Iterator[Ratio]:
    """7: sixteen times the test set, from the start of the actors to the last file."""
    times = 16
    model = bench.untrained
    dataset = bench.store.write_raw(data.of(bench.source), [data.tiled(bench.splits["test"], times)])
    rows = sum(file.rows or 0 for file in manifest.load(dataset).files)
    plain_arguments = ["--test", f"{dataset}/test", "--out", str(bench.fresh("predictions"))]
    os.environ[_RAY] = str(os.getpid())
    with session(bench.root, wanted=True, workers=None) as cluster:
        ray = f"{_RAY}={os.environ.pop(_RAY)}"

        def mine() -> float:
            return rows / float(manifest.load(bench.store.predict(cluster, model, dataset)).statistics["seconds"])

        with started("plain", *plain_arguments) as plain:
            plain.ask("predict")
            ours, other = in_turn(mine, alone(rate_of(plain, "predict"), beside=ray), pairs=bench.few_pairs)
    what = f"prediction, {times}x the test set: ours / plain loop and `pq.write_table`"
    yield Ratio(number=7, what=what, ours=ours, other=other, unit="rows/s", target=bench.full(at_most(1.18)))
