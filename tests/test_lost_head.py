"""A run on a cluster that loses its head, and whose nodes were started in a folder with another copy of the code."""

import contextlib
import re
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import manifest
from storage.kinds import CHECKPOINT
from storage.producer import producer
from storage.uri import URI, Root
from tests.clusters import Head, jobs
from tests.faults.harness import raw_name, write_raw
from tests.runs import CHECKOUT, Run, await_that, find

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_EPOCHS = 60
_PRINTED = ("Tip: use more data", "state: world_rank=0", "see core_worker.cc: it aborts", "Progress bars disabled")
"""What a user's model prints, and Ray also does."""


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    """Each module of the copy in its start folder fails when it is imported."""
    for package in ("tasks", "storage"):
        shutil.copytree(CHECKOUT / package, tmp_path / "start" / package)
    for module in (tmp_path / "start").rglob("*.py"):
        module.write_text("raise ImportError('the copy in the start folder')")
    head = Head(tmp_path / "start")
    try:
        await_that(lambda: _answers(head), limit_s=120)
        yield head
    finally:
        head.be_lost()


def test_the_recipe_of_the_docs_runs_although_its_flow_is_evicted_and_the_head_is_lost(
    head: Head, tmp_path: Path
) -> None:
    root, file = Root(str(tmp_path / "root")), tmp_path / "my_recipe.py"
    write_raw(root)
    page = (CHECKOUT / "docs" / "your-recipe.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(example.splitlines()) <= 30
    prints = "".join(f"    print({line!r})\n" for line in _PRINTED)
    file.write_text(example.replace("    height, width", f"{prints}    height, width"))
    words = ["--recipe", f"{file}:recipe", "--set", f"epochs={_EPOCHS}", "--json", "--storage", root]
    words += ["--data", root.child(f"datasets/raw/{raw_name()}")]
    evicted = Run(*words, folder=tmp_path, env=head.env)
    await_that(lambda: evicted.process.poll() is not None or _epochs(root) >= 1)
    head.signal_workers(signal.SIGSTOP)  # the next run begins in seconds or, on a busy machine, in a minute
    evicted.process.terminate()
    assert evicted.process.wait(120) != 0
    (job,) = [name for name in jobs(head.env) if name.startswith("train-")]
    assert jobs(head.env)[job] == "RUNNING"

    run = Run(*words, folder=tmp_path, env=head.env)
    await_that(lambda: run.process.poll() is not None or run.says(f"attached to job {job}"))
    before = len(_told(run))
    head.signal_workers(signal.SIGCONT)
    await_that(lambda: run.process.poll() is not None or len(_told(run)) > before)
    head.be_lost()
    before = _epochs(root)
    assert 0 < before < _EPOCHS and run.process.poll() is None, "the head was lost too late"
    lost = f"s head at {head.address}: "  # Prefect's line has the repr of the error, with its apostrophe escaped
    await_that(lambda: run.says(lost), limit_s=60)
    head.come_back()
    result = run.result()
    told = _told(run, after=lost)
    assert told[0] >= before, "only what no checkpoint has may have to be done again"
    assert told == list(range(told[0], _EPOCHS + 1))
    assert result["promoted"], result["reason"]
    checkpoint = manifest.load(URI(result["uris"]["checkpoint"]))
    assert checkpoint.statistics_of(CHECKPOINT).model.model.startswith("my_recipe.py:network@")
    assert checkpoint.producer["code"] == producer()["code"]
    with contextlib.closing(sqlite3.connect(tmp_path / "prefect" / "prefect.db")) as database:
        lines = {line for (line,) in database.execute("SELECT message FROM log WHERE level >= 20")}
    assert {line.partition(") ")[2] for line in lines if line.startswith("(RayTrainWorker pid=")} >= set(_PRINTED)


def _answers(head: Head) -> bool:
    with contextlib.suppress(OSError):
        return jobs(head.env) == {}
    return False


def _told(run: Run, *, after: str = "") -> list[int]:
    """The epochs whose lines are in the log, or in what follows the last `after`."""
    log = run.log.read_text()
    return [int(epoch) for epoch in re.findall(rf"epoch (\d+)/{_EPOCHS}: ", log.rpartition(after)[2] if after else log)]


def _epochs(root: Root) -> int:
    """The latest epoch with a checkpoint."""
    paths = find(Path(root), "runs/*/*/epoch-*/checkpoint.json")
    return max((int(path.parent.name.removeprefix("epoch-")) for path in paths), default=0)
