"""Lines 1 to 8, 13 and 14: one stage of this project compared with the same work by hand."""

import os
import sys
import time
from collections.abc import Iterator

from storage import manifest
from tasks.runners.local_runner import LocalRunner
from tasks.runners.session import session
from tests.benchmarks import data, notebook_arm
from tests.benchmarks.arm import Arm, alone, started
from tests.benchmarks.bench import Bench, at_least, at_most, rate, rate_of, seconds_of
from tests.benchmarks.ratios import Ratio, in_turn

_FEEDING = {"resident": at_least(0.95), "streaming": at_least(0.3), "dataloader": None}
"""The loaders; the tutorials' own has no target."""
_RAY = "PIPELINE_BENCHMARK_RAY"
"""In the environment of every process of a Ray, and of no others."""


def ingest(bench: Bench) -> Iterator[Ratio]:
    """1: from images in memory to Parquet on the disk."""
    times = 16
    arguments = ["--source", bench.source, "--times", str(times), "--out", str(bench.fresh("ingest"))]
    with started("ingest", *arguments) as arm:
        arm.ask("ours"), arm.ask("plain")
        ours, plain = in_turn(rate_of(arm, "ours"), rate_of(arm, "plain"), pairs=bench.pairs)
        what = f"ingest, {times}x: ours / plain `pq.write_table`"
        yield Ratio(number=1, what=what, ours=ours, other=plain, unit="rows/s", target=at_least(0.9))
        ours, notebook = in_turn(rate_of(arm, "ours"), rate_of(arm, "notebook"), pairs=bench.pairs)
        what = f"ingest, {times}x: ours / notebook"
        yield Ratio(number=1, what=what, ours=ours, other=notebook, unit="rows/s", target=at_least(50))


def training(bench: Bench) -> Iterator[Ratio]:
    """2, 3, 4 and 8: feeding, steps and checkpoints of one worker."""
    store = bench.fresh("store")
    store.mkdir()
    shared = ["--prepared", bench.prepared, "--steps", str(bench.steps)]
    ours_arguments = [*shared, "--scratch", str(bench.fresh("scratch"))]
    plain_arguments = [*shared, "--out", str(store)]
    with started("ours", *ours_arguments) as ours, started("plain", *plain_arguments) as plain:
        for work, target in _FEEDING.items():
            ours.ask(work), plain.ask("feed")
            mine, other = in_turn(
                rate_of(ours, work), alone(rate_of(plain, "feed"), beside=ours.mark), pairs=bench.pairs
            )
            what = f"feeding, batches of 128: {work} / slices of a tensor"
            if target and work == "streaming":  # which reads each part anew: few rows, and that weighs most
                target = bench.full(target)
            yield Ratio(number=2, what=what, ours=mine, other=other, unit="rows/s", target=target)
        yield from _epochs(bench, ours, plain, number=3, loader="resident")
        whole: list[float] = []

        def checkpoint() -> float:
            found = ours.ask("checkpoint")
            whole.append(found["whole"])
            return found["seconds"]

        mine, other = in_turn(checkpoint, alone(seconds_of(plain, "checkpoint"), beside=ours.mark), pairs=bench.pairs)
        what = "checkpoint: blocked in ours / `torch.save` and copy"
        yield Ratio(number=8, what=what, ours=mine, other=other, unit="s", target=at_most(1.5))
        what = "checkpoint: until it is whole, hashed and flushed / `torch.save` and copy"
        yield Ratio(number=8, what=what, ours=whole, other=other, unit="s", target=None)


def ray_data(bench: Bench) -> Iterator[Ratio]:
    """13 and 14: feeding, waiting and steps of one worker that Ray Data reads for."""
    store = bench.fresh("store")
    store.mkdir()
    shared = ["--prepared", bench.prepared, "--steps", str(bench.steps)]
    ours_arguments = [*shared, "--scratch", str(bench.fresh("scratch")), "--loader", "ray-data"]
    with started("ours", *ours_arguments) as ours, started("plain", *shared, "--out", str(store)) as plain:
        ours.ask("ray-data"), plain.ask("feed")
        mine, other = in_turn(
            rate_of(ours, "ray-data"), alone(rate_of(plain, "feed"), beside=ours.mark), pairs=bench.pairs
        )
        what = "feeding, batches of 128: ray-data / slices of a tensor"
        yield Ratio(number=13, what=what, ours=mine, other=other, unit="rows/s", target=None)
        yield from _epochs(bench, ours, plain, number=13, loader="ray-data")


def _epochs(bench: Bench, ours: Arm, plain: Arm, *, number: int, loader: str) -> Iterator[Ratio]:
    """Waiting for data in epochs of ours, and their pace beside the script's."""
    ours.ask("epoch"), plain.ask("epoch")
    waited: list[float] = []

    def epoch() -> float:
        found = ours.ask("epoch")
        waited.append(found["waited"] / found["seconds"])
        return rate(found)

    mine, other = in_turn(epoch, alone(rate_of(plain, "epoch"), beside=ours.mark), pairs=bench.pairs)
    is_judged = loader == "resident"
    what = f"waiting for data / epoch, {loader}"
    target = at_most(0.01) if is_judged else None
    yield Ratio(number=number, what=what, ours=waited, other=[1.0] * len(waited), unit="", target=target)
    what = f"training, 1 worker, {loader}: ours / plain"
    target = at_least(0.97) if is_judged else None
    yield Ratio(number=number + 1, what=what, ours=mine, other=other, unit="images/s", target=target)


def ddp(bench: Bench) -> Iterator[Ratio]:
    """6: two workers with one thread each."""
    store = bench.fresh("store")
    store.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    shared = ["--prepared", bench.prepared, "--steps", str(bench.steps)]
    ours_arguments = [*shared, "--scratch", str(bench.fresh("scratch")), "--workers", "2"]
    plain_arguments = [*shared, "--out", str(store)]
    with (
        started("ours", *ours_arguments) as ours,
        started("plain", *plain_arguments, launcher=torchrun, threads=1) as plain,
    ):
        ours.ask("epoch"), plain.ask("epoch")
        mine, other = in_turn(
            rate_of(ours, "epoch"), alone(rate_of(plain, "epoch"), beside=ours.mark), pairs=bench.pairs
        )
        what = "training, 2 workers x 1 thread: ours / torchrun"
        yield Ratio(number=6, what=what, ours=mine, other=other, unit="images/s", target=at_least(0.97))


def encoded(bench: Bench) -> Iterator[Ratio]:
    """14: JPEG pictures of 256 pixels, decoded and augmented by Ray Data's tasks on two CPUs, or on one."""

    def on(cpus: int) -> float:
        said = bench.module("encoded_feeding", "--cpus", str(cpus))
        return float(said.rpartition("images/s ")[2].split()[0])

    two, one = in_turn(lambda: on(2), lambda: on(1), pairs=bench.few_pairs)
    what = "JPEG at 256 px, decoded and augmented by tasks: two CPUs / one"
    yield Ratio(number=14, what=what, ours=two, other=one, unit="images/s", target=None)


def notebook(bench: Bench) -> Iterator[Ratio]:
    """5: a whole training call, Ray running."""
    epochs, split = bench.recipe.epochs, bench.splits["train"]
    rows = sum(file.rows or 0 for file in manifest.load(bench.prepared).split("train"))
    parquet = bench.fresh("notebook").with_suffix(".parquet")
    notebook_arm.write(parquet, split.images[:rows], split.labels[:rows])

    def theirs() -> float:
        asked = ["--parquet", str(parquet), "--out", str(bench.fresh("notebook")), "--epochs", str(epochs)]
        said = bench.module("notebook_arm", *asked, "--batch-size", str(bench.recipe.batch_size))
        return float(said.rpartition("seconds ")[2].split()[0])

    def mine() -> float:
        with session(bench.root, wanted=True, workers=None) as cluster:
            assert isinstance(cluster, LocalRunner)
            cluster.connect()
            begun = time.perf_counter()
            bench.train(cluster, bench.prepared)
            return time.perf_counter() - begun

    other, ours = in_turn(theirs, mine, pairs=bench.few_pairs)
    what = f"training call, epochs={epochs}: notebook / ours"
    yield Ratio(number=5, what=what, ours=other, other=ours, unit="s", target=bench.full(at_least(2)))


def prediction(bench: Bench) -> Iterator[Ratio]:
    """7: sixteen times the test set, from the start of the actors to the last file."""
    times = 16
    model = bench.untrained
    dataset = bench.write_raw({"test": data.tiled(bench.splits["test"], times)})
    rows = sum(file.rows or 0 for file in manifest.load(dataset).files)
    plain_arguments = ["--test", f"{dataset}/test", "--out", str(bench.fresh("predictions"))]
    os.environ[_RAY] = str(os.getpid())
    with session(bench.root, wanted=True, workers=None) as cluster:
        ray = f"{_RAY}={os.environ.pop(_RAY)}"

        def mine() -> float:
            return rows / float(manifest.load(bench.predict(cluster, model, dataset)).statistics["seconds"])

        with started("plain", *plain_arguments) as plain:
            plain.ask("predict")
            ours, other = in_turn(mine, alone(rate_of(plain, "predict"), beside=ray), pairs=bench.few_pairs)
    what = f"prediction, {times}x the test set: ours / plain loop and `pq.write_table`"
    yield Ratio(number=7, what=what, ours=ours, other=other, unit="rows/s", target=bench.full(at_least(0.85)))
