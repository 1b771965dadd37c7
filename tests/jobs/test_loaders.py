"""A worker gets its whole shard in a reproducible shuffled order, even if it does not fit in memory."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from storage import manifest
from storage.kinds import DatasetURI
from tasks.jobs.train.make_loader import make_loader
from tests.jobs import raw
from tests.jobs.raw import reader
from tests.runs import CHECKOUT

_SHAPE = (128, 128, 1)
_IDS = np.split(np.arange(24_000), 96)
"""Numbers of the rows of each part: 375 MiB of pixels, 4 a part."""
_LIMIT_BYTES = 340 * 2**20
_FEED = """
import sys
from functools import partial
import torch
from storage import manifest, process
from storage.kinds import DatasetURI
from tasks.jobs.train.make_loader import make_loader
from tests.jobs.raw import reader, recipe

process.keep_memory()
torch.set_num_threads(1)
kind, uri = sys.argv[1], DatasetURI(sys.argv[2])
read = None
if kind == "ray-data":
    import ray
    from tasks.jobs.train.ray_loader import datasets, windows

    options = {"include_dashboard": False, "logging_level": "ERROR", "object_store_memory": 100 * 2**20}
    ray.init(address="local", num_cpus=2, **options)
    shards = {split: rows.iterator() for split, rows in datasets(uri, manifest.load(uri), recipe()).items()}
    read = partial(windows, world_size=1, get_shard=shards.__getitem__)
print("ready", flush=True)
loader = make_loader(recipe(), uri, manifest.load(uri), reader(kind, windows=read))
labels = []
for _, batch in loader.train_batches(epoch=1, batch_size=100):
    labels += batch.tolist()
assert sorted(labels) == list(range(24_000)), len(labels)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> DatasetURI:
    """A prepared dataset of 375 MiB."""
    random = np.random.default_rng(0)
    parts = [(ids, random.integers(0, 256, (len(ids), *_SHAPE), dtype=np.uint8)) for ids in _IDS]
    splits = {"train": parts, "validation": parts[:1]}
    return raw.write_prepared(tmp_path_factory.mktemp("large"), _SHAPE, splits)


def feed(kind: str, uri: DatasetURI) -> int:
    """The exit code of one epoch in a process that is killed when it holds 340 MiB more than after its imports."""
    command = [sys.executable, "-c", _FEED, kind, uri]
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with subprocess.Popen(command, cwd=CHECKOUT, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        at_first = held(process.pid)
        while process.poll() is None:
            if held(process.pid) > at_first + _LIMIT_BYTES:
                process.kill()
    return process.returncode


def held(pid: int) -> int:
    """Bytes of memory of its own that a process has; none once it has ended."""
    found = Path(f"/proc/{pid}/status").read_text().partition("RssAnon:")[2].split()
    return int(found[0]) * 1024 if found else 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["streaming", "ray-data"])
def test_a_dataset_larger_than_memory_is_streamed_row_by_row_once(large: DatasetURI, kind: str) -> None:
    assert feed(kind, large) == 0


def test_reading_all_rows_at_the_start_counts_as_progress(prepared: DatasetURI) -> None:
    beats = list[None]()
    make_loader(raw.recipe(), prepared, manifest.load(prepared), reader("resident", beat=lambda: beats.append(None)))
    assert beats, "the watchdog would end a worker that reads for long"
