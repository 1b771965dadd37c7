"""Material of all cases: 2,003 real digits, an uninterrupted run, and storage reset to any of its stages."""

import contextlib
import dataclasses
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from storage import commits, files, manifest, tables
from storage.uri import URI
from tasks.learning import images, recipes
from tasks.planning import make_plan
from tasks.runners.child import Child
from tests import s3
from tests.faults import injection, proxy
from tests.faults.history import History
from tests.ingested import ingested
from tests.prefect_system import free_port
from tests.runs import Run

CANARY = f"canary{secrets.token_hex(12)}"
"""A secret in every run's environment, which must be found nowhere else."""
NUM_TRAIN, NUM_TEST = 1503, 500
"""Rows of the generator: 2,003 in all, a prime, so that no part, batch or shard comes out even."""
STAGES = {
    "raw": ("datasets/raw",),
    "prepared": ("datasets/prepared",),
    "checkpoint": ("checkpoints",),
    "predictions": ("predictions",),
    "evaluation": ("evaluations",),
    "promotion": ("registry",),
    "report": ("reports",),
}
"""What each stage leaves, in order."""
_RECIPE = ["--recipe", "mnist-sample-resnet18", "--json"]
SETTINGS: dict[str, str | int] = {"precision": "fp32", "epochs": 2, "minimum": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Golden:
    """Expected result of every run."""

    weights: str
    """SHA-256."""
    predictions: list[list[Any]]
    """Path, SHA-256 and rows of each part."""
    metrics: dict[str, float]


class Harness:
    """Folders, servers and the golden run of one suite."""

    def __init__(self, folder: Path, server: s3.Server, spoiling: proxy.Proxy) -> None:
        self.folder, self.server, self.proxy = folder, server, spoiling
        self.history = History(folder / "history.jsonl")
        self.disk, self.bucket = URI(str(folder / "root")), URI(f"s3://{server.bucket}/root")
        self._kept: dict[str, bytes] = {}
        self.golden = self._make_golden()
        self._variants: dict[tuple[object, ...], Golden] = {}

    def arguments(self, root: URI, *settings: str, workers: int = 0) -> list[str]:
        """The command line of every run on `root`."""
        chosen = [*(f"{name}={value}" for name, value in SETTINGS.items()), *settings]
        words = [word for setting in chosen for word in ("--set", setting)]
        data = root.child(f"datasets/raw/{raw_name()}")
        return [*_RECIPE, "--workers", str(workers), *words, "--storage", root, "--data", data]

    def environment(self, root: URI) -> dict[str, str]:
        """Return the environment variables of a run on `root`, secrets included."""
        if root.is_s3:
            return self.server.environment() | {"AWS_ENDPOINT_URL": self.proxy.endpoint}
        return {"AWS_SECRET_ACCESS_KEY": CANARY}

    def reset_to(self, root: URI, *, until: str | None) -> None:
        """Make `root` what the golden run had left after stage `until`; none: empty."""
        self.proxy.pending, self.proxy.injected = [], []
        files.remove(root)
        if until is None:
            return
        stages = list(STAGES)[: list(STAGES).index(until) + 1]
        shelves = tuple(shelf + "/" for stage in stages for shelf in STAGES[stage])
        # A manifest last, as it was written, though nobody reads meanwhile.
        for path in sorted(self._kept, key=lambda path: path.endswith(manifest.NAME)):
            if path.startswith(shelves):
                files.put(root.child(path), self._kept[path])

    def golden_path(self, shelf: str, ending: str) -> str:
        """Where the golden run left a file below `shelf`, relative to the root."""
        return next(path for path in self._kept if path.startswith(f"{shelf.strip('/')}/") and path.endswith(ending))

    def variant(self, *settings: str, workers: int, env: Mapping[str, str]) -> Golden:
        """What an undisturbed run with other workers, settings of the training and variables comes to."""
        key = (workers, *settings, *env.items())
        if key not in self._variants:
            self.reset_to(self.disk, until="prepared")
            self._variants[key] = self._undisturbed(self.arguments(self.disk, *settings, workers=workers), env)
        return self._variants[key]

    def _make_golden(self) -> Golden:
        files.remove(self.disk)
        write_raw(self.disk)
        golden = self._undisturbed(self.arguments(self.disk), {})
        self._kept = {entry.path: files.read(self.disk.child(entry.path)) for entry in files.walk(self.disk)}
        return golden

    def _undisturbed(self, arguments: list[str], env: Mapping[str, str]) -> Golden:
        env = self.environment(self.disk) | injection.environment(self.history.path) | dict(env)
        result = Run(*arguments, folder=self.folder / "runs", env=env).result()
        checkpoint, predictions = (manifest.load(URI(result["uris"][name])) for name in ("checkpoint", "predictions"))
        return Golden(
            weights=next(file.sha256 for file in checkpoint.files if file.path.startswith("weights")),
            predictions=[[file.path, file.sha256, file.rows] for file in predictions.files],
            metrics=result["metrics"],
        )


@contextlib.contextmanager
def prepared(folder: Path) -> Iterator[Harness]:
    """A harness with its servers running, in `folder`."""
    for name in ("root", "runs", "s3"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "runs").mkdir(parents=True)
    (folder / "history.jsonl").unlink(missing_ok=True)
    before = dict(os.environ)
    with (
        s3.serve(folder / "s3") as server,
        proxy.serve(server.endpoint) as spoiling,
        _prefect(folder / "runs") as prefect_url,
    ):
        # The suite itself does without the proxy.
        os.environ.update(server.environment() | {"PREFECT_API_URL": prefect_url, "TMPDIR": str(folder)})
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads of two trainings must not wait by spinning
        try:
            yield Harness(folder, server, spoiling)
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextlib.contextmanager
def _prefect(folder: Path) -> Iterator[str]:
    """The API of a server for all runs, so that not each has to start its own."""
    from flows.server.temporary_server import await_server

    port = free_port()
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    env = os.environ | {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "0"}
    child = Child(command, env=env)
    try:
        await_server(child, f"http://127.0.0.1:{port}/api/health")
        yield f"http://127.0.0.1:{port}/api"
    finally:
        child.end()


def write_raw(root: URI) -> None:
    """The first 1,503 training and 500 test digits of the sample as a raw dataset, with the checksums of its files."""
    with tempfile.TemporaryDirectory() as folder:
        sample = ingested(make_plan.make_plan(storage=folder, recipe=recipes.load("mnist-sample-resnet18"), workers=0))
        recorded, uri = manifest.load(sample), root.child(f"datasets/raw/{raw_name()}")
        tables_of = {split: tables.read_split(sample, split) for split in ("train", "test")}
        parts = [
            tables.write_part(
                uri, tables_of[split].slice(start, end - start).combine_chunks(), split=split, index=index
            )
            for split, count in (("train", NUM_TRAIN), ("test", NUM_TEST))
            for index, (start, end) in enumerate(images.part_bounds(count, 4))
        ]
        about: dict[str, Any] = {"parameters": recorded.parameters, "schema": recorded.columns}
        statistics = recorded.statistics.model_copy(update={"seconds": 0.0})
        commits.commit(uri, kind="raw", parents={}, listed=parts, statistics=statistics, **about)


def raw_name() -> str:
    """Return the name of the raw dataset of all cases."""
    return "mnist-sample-000000002003"
