"""The lines of the table: what is measured against what, and the bar that the ratio has to meet."""

from collections.abc import Callable, Iterator
from pathlib import Path

from storage.uri import DatasetURI, Root
from tasks import plan as planning
from tasks.cluster import Cluster, session
from tasks.jobs.spec import PreprocessSpec
from tests.benchmarks import data
from tests.benchmarks.arm import Arm, started
from tests.benchmarks.ratios import Bar, Ratio, in_turn

Log = Callable[[str], None]
_DAY_S = 24 * 3600.0


class Bench:
    """Where the arms work, on how much, and how often."""

    def __init__(self, folder: Path, *, source: str, quick: bool, log: Log) -> None:
        self.folder, self.source, self.quick, self.log = folder, source, quick, log
        self.pairs = 3 if quick else 7
        self.root = Root(str(folder / "root"))
        self._count = 0

    def fresh(self, name: str) -> Path:
        """A folder that nothing was ever in."""
        self._count += 1
        return self.folder / f"{name}-{self._count}"

    def prepare(self) -> None:
        """One raw and one prepared dataset for the arms that need no other."""
        self.raw = data.write_raw(self.root, data.load(self.source), name="mnist-000000000000")
        self.prepared = DatasetURI(self.root.child("datasets/prepared/mnist-resnet18-000000000000"))
        with session(self.root, wanted=True, workers=None) as cluster:
            self.preprocess(cluster, self.raw, self.prepared)

    def preprocess(self, cluster: Cluster, raw: DatasetURI, prepared: DatasetURI) -> None:
        """Our preprocessing as a job."""
        parameters = {"seed": 0, "validation_fraction": 0.1, "max_quarantined": 0.01}
        spec = PreprocessSpec(storage=self.root, deadline_s=_DAY_S, raw=raw, prepared=prepared, parameters=parameters)
        cluster.run("preprocess", spec, target=prepared, scratch=planning.scratch_of(self.root, prepared))


def ingest(bench: Bench) -> Iterator[Ratio]:
    """1: from images in memory to Parquet on the disk."""
    times = 16
    arguments = ["--source", bench.source, "--times", str(times), "--out", str(bench.fresh("ingest"))]
    with started("ingest", *arguments) as arm:
        arm.ask("ours")
        ours, plain = in_turn(_rate_of(arm, "ours"), _rate_of(arm, "plain"), pairs=bench.pairs)
        what = f"ingest, {times}x: ours / plain `pq.write_table`"
        yield Ratio(number=1, what=what, ours=ours, other=plain, unit="rows/s", bar=_at_least(0.9))
        ours, seed = in_turn(_rate_of(arm, "ours"), _rate_of(arm, "seed"), pairs=bench.pairs)
        what = f"ingest, {times}x: ours / notebook"
        yield Ratio(number=1, what=what, ours=ours, other=seed, unit="rows/s", bar=_at_least(50))


def training(bench: Bench) -> Iterator[Ratio]:
    """2, 3, 4 and 8: feeding, steps and checkpoints of one worker."""
    store = bench.fresh("store")
    store.mkdir()
    ours_arguments = ["--prepared", bench.prepared, "--scratch", str(bench.fresh("scratch"))]
    plain_arguments = ["--prepared", bench.prepared, "--out", str(store)]
    with started("ours", *ours_arguments) as ours, started("plain", *plain_arguments) as plain:
        for work in ("resident", "streaming"):
            ours.ask(work)
            mine, other = in_turn(_rate_of(ours, work), _rate_of(plain, "feed"), pairs=bench.pairs)
            what = f"feeding, batches of 128: {work} / slices of a tensor"
            bar = _at_least(0.95 if work == "resident" else 0.3)
            yield Ratio(number=2, what=what, ours=mine, other=other, unit="rows/s", bar=bar)
        ours.ask("epoch"), plain.ask("epoch")
        waited: list[float] = []

        def epoch() -> float:
            found = ours.ask("epoch")
            waited.append(found["waited"] / found["seconds"])
            return _rate(found)

        mine, other = in_turn(epoch, _rate_of(plain, "epoch"), pairs=bench.pairs)
        what = "waiting for data / epoch"
        yield Ratio(number=3, what=what, ours=waited, other=[1.0] * len(waited), unit="", bar=_at_most(0.01))
        what = "training, 1 worker: ours / plain"
        yield Ratio(number=4, what=what, ours=mine, other=other, unit="images/s", bar=_at_least(0.97))
        mine, other = in_turn(
            lambda: ours.ask("checkpoint")["seconds"], lambda: plain.ask("checkpoint")["seconds"], pairs=bench.pairs
        )
        what = "checkpoint: blocked in ours / `torch.save` and copy"
        yield Ratio(number=8, what=what, ours=mine, other=other, unit="s", bar=_at_most(1.5))


LINES: dict[str, Callable[[Bench], Iterator[Ratio]]] = {"ingest": ingest, "training": training}


def _at_least(value: float) -> Bar:
    return Bar(value=value, at_least=True)


def _at_most(value: float) -> Bar:
    return Bar(value=value, at_least=False)


def _rate(measured: dict[str, float]) -> float:
    return measured["rows"] / measured["seconds"]


def _rate_of(arm: Arm, work: str) -> Callable[[], float]:
    return lambda: _rate(arm.ask(work))
