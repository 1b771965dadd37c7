"""Many rows: `python -m tests.benchmarks.rows --times 100` sends 100 times MNIST's rows through the pipeline.

The images are tiny and have random pixels, so that only the number of rows matters. Measures writing raw parts as
ingest does, `preprocess`, and `predict` of the test rows with an untrained model: for each the seconds, the largest
processes, the bytes in storage, and with `--s3` the number of requests.
"""

import argparse
import contextlib
import dataclasses
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from storage import commits, files, manifest, tables
from storage.uri import URI, CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.jobs.ingest.downloads import write_split
from tasks.learning import images, sources
from tasks.learning.sources import Source, Split
from tasks.runners.session import session
from tests import s3
from tests.benchmarks.bench import commit_untrained, predict, preprocess
from tests.faults import proxy
from tests.runs import processes_with, repeatedly

_ROWS = {"train": 60_000, "test": 10_000}
_MARK = "BENCHMARK_ROWS"
_ROLES = ("tasks.jobs.", "ray::", "raylet", "gcs_server", "tests.benchmarks.rows")
"""Parts of command lines whose memory is told; `ray::` with what comes next."""


def main() -> None:
    """Measure and print a table."""
    given = _parser().parse_args()
    os.environ |= {_MARK: str(os.getpid()), "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore"}
    with tempfile.TemporaryDirectory(prefix="rows-", dir=given.folder) as folder, _storage(folder, given.s3) as place:
        root, requests = place
        source = dataclasses.replace(sources.load("mnist"), image_shape=(given.side, given.side, 1))
        raw = DatasetURI(root.child("datasets/raw/mnist-000000000000"))
        prepared = DatasetURI(root.child("datasets/prepared/mnist-000000000000"))
        model = CheckpointURI(root.child("checkpoints/mnist-resnet18-000000000000"))
        predictions = PredictionsURI(root.child("predictions/mnist-resnet18-000000000000"))
        with session(root, wanted=True, workers=None) as cluster:
            stages: dict[str, tuple[URI, Callable[[], object]]] = {
                "raw parts": (raw, lambda: _write_raw(source, raw, times=given.times)),
                "preprocess": (prepared, lambda: preprocess(cluster, root, raw, prepared)),
                "predict": (predictions, lambda: predict(cluster, root, model, prepared, predictions)),
            }
            for name, (uri, work) in stages.items():
                if name == "predict":
                    commit_untrained(root, prepared, model)
                before, begun = Counter(requests), time.monotonic()
                with _memory() as peaks:
                    work()
                _tell(name, uri, time.monotonic() - begun, peaks, requests - before)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.benchmarks.rows", description=(__doc__ or "").split("\n\n")[1])
    add = made.add_argument
    add("--times", type=int, default=100, help="multiple of MNIST's 70,000 rows (default: %(default)s)")
    add("--side", type=int, default=4, help="pixels per side of an image (default: %(default)s)")
    add("--s3", action="store_true", help="use a local S3 server and count its requests (default: a disk)")
    add("--folder", metavar="DIR", help="folder for temporary files (default: the system's)")
    return made


@contextlib.contextmanager
def _storage(folder: str, on_s3: bool) -> Iterator[tuple[Root, Counter[str]]]:
    """A storage root, and the requests that it gets, which on a disk nobody counts."""
    if not on_s3:
        yield Root(f"{folder}/root"), Counter()
        return
    with s3.serve(Path(folder, "s3")) as server, proxy.serve(server.endpoint) as counting:
        os.environ |= server.environment() | {"AWS_ENDPOINT_URL": counting.endpoint}
        yield Root(f"s3://{server.bucket}/root"), counting.requests


def _write_raw(source: Source, uri: DatasetURI, *, times: int) -> None:
    random = np.random.default_rng(0)
    listed = []
    for name, rows in _ROWS.items():
        pixels = random.integers(0, 256, (rows * times, *source.image_shape), dtype=np.uint8)
        labels = random.integers(0, len(source.classes), rows * times)
        listed += write_split(source, uri, Split(name, pixels, labels))
    schema = tables.describe(images.schema(source.image_shape, source.classes))
    commits.commit(uri, kind="raw", parents={}, parameters={"data": source.name}, listed=listed, schema=schema)


@contextlib.contextmanager
def _memory() -> Iterator[dict[str, int]]:
    """The most memory of its own, in bytes, that any one process of each role had; as often as one can look."""
    peaks: dict[str, int] = {}

    def look() -> None:
        ours = {os.getpid(): "tests.benchmarks.rows "}
        for pid, command in (processes_with(f"{_MARK}={os.getpid()}") | ours).items():
            role = next((role for role in _ROLES if role in command), None)
            with contextlib.suppress(OSError):
                own = int(Path(f"/proc/{pid}/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024
                if role:
                    name = command[command.index(role) :].split()[0]
                    peaks[name] = max(peaks.get(name, 0), own)

    with repeatedly(look, interval_s=0.3):
        yield peaks


def _tell(name: str, uri: URI, seconds: float, peaks: dict[str, int], requests: Counter[str]) -> None:
    made = manifest.load(uri)
    size, text = sum(file.size for file in made.files), files.entry(uri.child(manifest.NAME)).size
    print(f"{name}: {seconds:.1f} s; {made.rows:,} rows in {len(made.files)} parts, {size:,} bytes; manifest {text:,}")
    largest = sorted(peaks.items(), key=lambda item: -item[1])[:4]
    print("  memory: " + ", ".join(f"{name} {peak / 1e6:,.0f} MB" for name, peak in largest))
    if requests:
        print("  requests: " + ", ".join(f"{count} {method}" for method, count in sorted(requests.items())), flush=True)


if __name__ == "__main__":
    main()
