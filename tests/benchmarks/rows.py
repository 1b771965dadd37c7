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

from storage import files, manifest
from storage.uri import URI, DatasetURI, PredictionsURI, Root
from tasks.learning import recipes, sources
from tasks.learning.sources import Source, Split
from tasks.runners.session import session
from tests import s3
from tests.benchmarks.bench import untrained
from tests.benchmarks.store import Store
from tests.faults import proxy
from tests.runs import processes_with, repeatedly

_ROWS = {"train": 60_000, "test": 10_000}
_MARK = "BENCHMARK_ROWS"
_ROLES = ("tasks.jobs.", "ray::", "raylet", "gcs_server", "tests.benchmarks.rows")
"""Parts of command lines whose memory is told; `ray::` with what comes next."""


def main() -> None:
    """Measure and print a table."""
    options = _parser().parse_args()
    os.environ |= {_MARK: str(os.getpid()), "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore"}
    with (
        tempfile.TemporaryDirectory(prefix="rows-", dir=options.folder) as folder,
        _storage(folder, options.s3) as place,
    ):
        root, requests = place
        store = Store(root)
        source = dataclasses.replace(sources.load("mnist"), image_shape=(options.side, options.side, 1))
        model = untrained(store, source, recipes.load("mnist-resnet18"))

        def measured(name: str, work: Callable[[], DatasetURI | PredictionsURI]) -> DatasetURI:
            before, begun = Counter(requests), time.monotonic()
            with _memory() as peaks:
                uri = work()
            _tell(name, uri, time.monotonic() - begun, peaks, requests - before)
            return DatasetURI(uri)

        with session(root, wanted=True, workers=None) as cluster:
            raw = measured("raw parts", lambda: store.write_raw(source, _splits(source, options.times)))
            prepared = measured("preprocess", lambda: store.preprocess(cluster, raw))
            measured("predict", lambda: store.predict(cluster, model, prepared))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.rows", description=(__doc__ or "").split("\n\n")[1]
    )
    add = parser.add_argument
    add("--times", type=int, default=100, help="multiple of MNIST's 70,000 rows (default: %(default)s)")
    add("--side", type=int, default=4, help="pixels per side of an image (default: %(default)s)")
    add("--s3", action="store_true", help="use a local S3 server and count its requests (default: a disk)")
    add("--folder", metavar="DIR", help="folder for temporary files (default: the system's)")
    return parser


@contextlib.contextmanager
def _storage(folder: str, on_s3: bool) -> Iterator[tuple[Root, Counter[str]]]:
    """A storage root, and the requests that it gets, which on a disk nobody counts."""
    if not on_s3:
        yield Root(f"{folder}/root"), Counter()
        return
    with s3.serve(Path(folder, "s3")) as server, proxy.serve(server.endpoint) as counting:
        os.environ |= server.environment() | {"AWS_ENDPOINT_URL": counting.endpoint}
        yield Root(f"s3://{server.bucket}/root"), counting.requests


def _splits(source: Source, times: int) -> Iterator[Split]:
    random = np.random.default_rng(0)
    for name, rows in _ROWS.items():
        pixels = random.integers(0, 256, (rows * times, *source.image_shape), dtype=np.uint8)
        yield Split(name, pixels, random.integers(0, len(source.classes), rows * times))


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
    parts = manifest.load(uri)
    size, text = sum(file.size for file in parts.files), files.entry(uri.child(manifest.NAME)).size
    print(
        f"{name}: {seconds:.1f} s; {parts.rows:,} rows in {len(parts.files)} parts, {size:,} bytes; manifest {text:,}"
    )
    largest = sorted(peaks.items(), key=lambda item: -item[1])[:4]
    print("  memory: " + ", ".join(f"{name} {peak / 1e6:,.0f} MB" for name, peak in largest))
    if requests:
        print("  requests: " + ", ".join(f"{count} {method}" for method, count in sorted(requests.items())), flush=True)


if __name__ == "__main__":
    main()
