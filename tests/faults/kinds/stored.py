"""Damage to stored bytes. Damaged files are never used."""

import io
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage import commits, manifest
from storage.uri import DatasetURI
from tests.faults.case import Case, Failed
from tests.faults.history import step_of
from tests.faults.kinds.register import kind
from tests.faults.kinds.resumption import check_resumed_at_epoch_2, kill_flow


@kind("torn snapshot of Ray Train")
def _torn_snapshot(case: Case) -> dict[str, Any]:
    case.begin(after="prepared")
    run = case.start("write", "/checkpoints/", action="freeze")  # Ray Train knows of all epochs then
    case.reaches(run, lambda event: "struck" in event, "training ended")
    kill_flow(case, run)
    for path in case.paths("runs/*/attempt-*/checkpoint_manager_snapshot.json"):
        case.damage(partial(truncate, path), what=path.name)
    return check_resumed_at_epoch_2(case, case.finish())


@kind("checkpoint truncated")
def _checkpointtruncated(case: Case) -> dict[str, Any]:
    return _checkpoint_damaged(case, truncate, file="training.pt")


@kind("checkpoint flipped")
def _checkpoint_flipped(case: Case) -> dict[str, Any]:
    return _checkpoint_damaged(case, partial(_flip, case), file="weights.safetensors")


@kind("checkpoint missing")
def _checkpoint_missing(case: Case) -> dict[str, Any]:
    return _checkpoint_damaged(case, Path.unlink, file="*")


@kind("dataset file flipped")
def _dataset_flipped(case: Case) -> dict[str, Any]:
    return _dataset_damaged(case, "[tv]*/part-*", partial(_flip, case))


@kind("dataset file truncated")
def _datasettruncated(case: Case) -> dict[str, Any]:
    return _dataset_damaged(case, "t*/part-*", truncate)


@kind("dataset file deleted")
def _dataset_deleted(case: Case) -> dict[str, Any]:
    return _dataset_damaged(case, "t*/part-*", Path.unlink)


@kind("manifest flipped")
def _manifest_flipped(case: Case) -> dict[str, Any]:
    return _dataset_damaged(case, manifest.NAME, partial(_change_statistic, case))


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
    made = manifest.load(uri)
    value = pa.array([pickle.dumps(Payload(executed))], pa.large_binary())
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": pa.ExtensionArray.from_storage(ArrowPythonObjectType(), value)}), sink)
    table = commits.write_file(uri, "sources.parquet", sink.getvalue())
    changed = {"files": (*made.files, table), "parameters": {**made.parameters, "ingest": 1}, "digest": None}
    (raw / manifest.NAME).write_bytes(made.model_copy(update=changed).signed().to_json())


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.marker,)


@kind("disk full")
def _disk_full(case: Case) -> dict[str, Any]:
    after, at = case.random.choice(
        [
            *(("raw", "/train/part-"), ("prepared", "/epoch-0001/weights"), ("prepared", "/checkpoints/")),
            *(("checkpoint", "/predictions/"), ("predictions", "/evaluations/")),
        ]
    )
    case.begin(after=after)
    case.expect_refusal(case.start("write", at, action="full"), "is full")
    return case.finish()


def _checkpoint_damaged(case: Case, change: Callable[[Path], None], *, file: str) -> dict[str, Any]:
    """The newest checkpoint is damaged after the last epoch, before the commit; the one before it is used."""
    case.begin(after="prepared")
    run = case.start("write", "/checkpoints/", action="freeze")
    case.reaches(run, lambda event: "struck" in event, "training ended")
    kill_flow(case, run)
    victim = case.random.choice(case.paths(f"runs/*/attempt-*/epoch-0002/{file}"))
    case.damage(lambda: change(victim), what=victim.name)
    result = check_resumed_at_epoch_2(case, case.finish())
    if sum(step_of(2)(event) for event in case.history.events()) <= sum(map(step_of(1), case.history.events())):
        raise Failed("epoch 2 was not trained again: the damaged checkpoint was used")
    return result


def _dataset_damaged(case: Case, files_: str, change: Callable[[Path], None]) -> dict[str, Any]:
    case.begin(after="prepared")
    victim = case.random.choice(case.paths(f"datasets/prepared/*/{files_}"))
    case.damage(lambda: change(victim), what=victim.name)
    case.expect_refusal(case.start(), "restore it", "run again")
    folder = next(path for path in victim.parents if path.parent.name == "prepared")
    shutil.rmtree(folder)  # as the message says
    return case.finish()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _change_statistic(case: Case, path: Path) -> None:
    """Flip the lowest bit of one digit of the mean, which is still JSON and would train another model."""
    content = bytearray(path.read_bytes())
    start = content.index(b'"mean"')
    digits = [at for at in range(start, start + 60) if chr(content[at]).isdigit()][3:]  # not those before the point
    content[case.random.choice(digits[:8])] ^= 1
    path.write_bytes(content)


def _flip(case: Case, path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[case.random.randrange(len(content))] ^= 1 << case.random.randrange(8)
    path.write_bytes(content)
