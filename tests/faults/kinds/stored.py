"""Damage to stored bytes. Damaged files are never used."""

import io
import pickle
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage import commits, manifest
from storage.kinds import DatasetURI
from tests.faults.case import Case, Failed, kind
from tests.faults.history import is_struck, step_of

Change = Callable[[Path, Case], None]
"""Damages a file; random choices are the case's."""
_OLDER_CPU = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""Has torch compute as on a machine that knows fewer instructions: the same training comes to other weights."""


def _truncate(path: Path) -> None:
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _delete(path: Path, case: Case) -> None:
    path.unlink()


def _flip(path: Path, case: Case) -> None:
    content = bytearray(path.read_bytes())
    content[case.random.randrange(len(content))] ^= 1 << case.random.randrange(8)
    path.write_bytes(content)


def _change_statistic(path: Path, case: Case) -> None:
    """Flip the lowest bit of one digit of the mean, which is still JSON and would train another model."""
    content = bytearray(path.read_bytes())
    start = content.index(b'"mean"')
    digits = [at for at in range(start, start + 60) if chr(content[at]).isdigit()][3:]  # not those before the point
    content[case.random.choice(digits[:8])] ^= 1
    path.write_bytes(content)


def _kill_before_commit(case: Case) -> None:
    """Kill the flow after the last epoch, before the commit; Ray Train knows of all epochs then."""
    case.begin(after="prepared", workers=1)
    run = case.start("write", "/checkpoints/", action="freeze")
    case.reaches(run, is_struck, "training ended")
    case.kill_flow(run)


@kind("torn snapshot of Ray Train")
def _torn_snapshot(case: Case) -> dict[str, Any]:
    _kill_before_commit(case)
    for path in case.paths("runs/*/attempt-*/checkpoint_manager_snapshot.json"):
        case.damage(partial(_truncate, path), what=path.name)
    return case.expect_resumed_at_epoch_2(case.finish())


@kind("checkpoint flipped")
def _checkpoint_damaged(case: Case) -> dict[str, Any]:
    """The newest checkpoint is damaged; the one before it is used."""
    _kill_before_commit(case)
    (victim,) = case.paths("runs/*/attempt-*/epoch-0002/weights.safetensors")
    case.damage(lambda: _flip(victim, case), what=victim.name)
    result = case.expect_resumed_at_epoch_2(case.finish())
    if sum(step_of(2)(event) for event in case.history.events()) <= sum(map(step_of(1), case.history.events())):
        raise Failed("epoch 2 was not trained again: the damaged checkpoint was used")
    return result


@kind("dataset file flipped", pattern="[tv]*/part-*", change=_flip)
@kind("dataset file deleted", pattern="t*/part-*", change=_delete)
@kind("manifest flipped", pattern=manifest.NAME, change=_change_statistic)
def _dataset_damaged(case: Case, *, pattern: str, change: Change) -> dict[str, Any]:
    case.begin(after="prepared")
    victim = case.random.choice(case.paths(f"datasets/prepared/*/{pattern}"))
    case.damage(lambda: change(victim, case), what=victim.name)
    case.expect_refusal(case.start(), "restore it", "run again")
    folder = next(path for path in victim.parents if path.parent.name == "prepared")
    shutil.rmtree(folder)  # as the message says
    return case.finish()


@kind("pickle in a raw dataset")
def _pickle_in_raw(case: Case) -> dict[str, Any]:
    """Somebody who can only write to storage adds a column that Ray unpickles to a table, and signs the manifest."""
    case.begin(after="raw")
    executed = case.harness.folder / "executed"
    case.damage(partial(_add_pickle, case.paths("datasets/raw/*")[0], executed), what="table of sources")
    case.expect_refusal(case.start(), "has the extension type")
    if executed.exists():
        raise Failed("content of storage was executed")
    case.harness.reset_to(case.root, until="raw")
    return case.finish()


def _add_pickle(raw: Path, executed: Path) -> None:
    from ray.data.extensions import ArrowPythonObjectType

    uri = DatasetURI(str(raw))
    committed = manifest.load(uri)
    value = pa.array([pickle.dumps(Payload(executed))], pa.large_binary())
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": pa.ExtensionArray.from_storage(ArrowPythonObjectType(), value)}), sink)
    table = commits.write_file(uri, "sources.parquet", sink.getvalue())
    changed = {"files": (*committed.files, table), "parameters": {**committed.parameters, "ingest": 1}, "digest": None}
    (raw / manifest.NAME).write_bytes(committed.model_copy(update=changed).signed().to_json())


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.marker,)


@kind("disk full")
def _disk_full(case: Case) -> dict[str, Any]:
    places = [("raw", "/train/part-"), ("prepared", "/epoch-0001/weights"), ("prepared", "/checkpoints/")]
    after, at = case.random.choice([*places, ("checkpoint", "/predictions/"), ("predictions", "/evaluations/")])
    case.begin(after=after)
    case.expect_refusal(case.start("write", at, action="full"), "is full")
    return case.finish()


@kind("checkpoint removed and trained again on another machine")
def _trained_again(case: Case) -> dict[str, Any]:
    """Predictions, evaluation and report of the damaged checkpoint are there, and are not results of the new one."""
    case.begin(after="report", env=_OLDER_CPU)
    if case.golden.weights == case.harness.golden.weights:
        raise Failed("the other machine computes the same")
    (weights,) = case.paths("checkpoints/*/weights-*")
    case.damage(partial(_truncate, weights), what=weights.name)
    case.expect_refusal(case.start(), "restore it", "run again")
    shutil.rmtree(weights.parent)  # as the message says
    stopped = case.start()
    case.expect_refusal(stopped, "was made from other bytes than", "rm -r")
    for folder in re.findall(r"rm -r (\S+)", stopped.log.read_text()):  # so does this one
        shutil.rmtree(folder, ignore_errors=True)
    return case.finish()
