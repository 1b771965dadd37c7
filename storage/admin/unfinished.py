"""Unfinished work: run folders without a committed result, which are running, waiting or interrupted."""

import datetime
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from pydantic import AliasPath, BaseModel, Field, ValidationError

from storage import files, in_use, lease, manifest
from storage.admin import catalog, format
from storage.admin.catalog import SCRATCH, SHELVES, Folder
from storage.manifest import Damaged, Kind
from storage.uri import URI, Root

_MAKES: Final[dict[str, Kind]] = {
    "ingest": "raw",
    "preprocess": "prepared",
    "train": "checkpoint",
    "predict": "predictions",
}
"""Stages that store the spec of their job, `<stage>.json`, in their run folder, with the kind of result they make."""
_EPOCH = re.compile(r"attempt-\d+/epoch-(\d+)/checkpoint\.json")
"""Path of the file that is written last of an epoch's checkpoint."""
_INTERRUPTED = "interrupted"


class _TrainSpec(BaseModel):
    epochs: int = Field(ge=1, validation_alias=AliasPath("recipe", "epochs"))


class Unfinished(NamedTuple):
    """One run folder whose result is not committed."""

    changed: float
    """Time of the last write to a file in it: seconds since 1970."""
    cells: tuple[str, ...]
    """State (`running`, `waiting` for a live run to start it, `interrupted`), stage, epochs, time of the write, URI."""


def of(root: Root, kinds: Collection[Kind]) -> tuple[list[Unfinished], list[str]]:
    """Return the unfinished results of `kinds`, the latest last, and a line for each damaged folder or record."""
    used: set[str] = set()
    wrong = []
    try:
        used = {uri.name for uri in in_use.used(root)}
    except Damaged as error:
        wrong = [str(error)]
    folders = catalog.survey(catalog.places(root, [SCRATCH]))
    found = catalog.at_once(lambda folder: _unfinished(root, folder, used, kinds), folders)
    wrong += [folder.damage for folder in folders if folder.damage]
    return sorted(filter(None, found)), wrong


def lines(found: Sequence[Unfinished], *, columns: int | None) -> Iterator[str]:
    """Yield a table of `found` and, if any work was interrupted, a hint what to do."""
    yield from format.table_of_uris([one.cells for one in found], columns=columns)
    if any(one.cells[0] == _INTERRUPTED for one in found):
        yield (
            "interrupted: no result yet; run the same command again to resume, after an error once its cause is fixed; "
            "gc deletes the files once they are old"
        )


def _unfinished(root: Root, folder: Folder, used: Collection[str], kinds: Collection[Kind]) -> Unfinished | None:
    paths = {entry.path for entry in folder.found}
    stage = next((stage for stage in _MAKES if f"{stage}.json" in paths), None)
    if stage is None and any(path.startswith("attempt-") for path in paths):  # a job started by hand
        stage = "train"
    if stage is None or _MAKES[stage] not in kinds:
        return None
    target = root.child(f"{SHELVES[_MAKES[stage]]}/{folder.uri.name}")
    holder = lease.holder(root, target)
    if manifest.is_committed(target):
        return None
    waiting_or_not = "waiting" if target.name in used else _INTERRUPTED
    state = f"running on {holder.host}" if holder else waiting_or_not
    done = max((int(match[1]) for match in map(_EPOCH.fullmatch, paths) if match), default=0)
    epochs = _epochs(folder.uri.child("train.json")) if stage == "train" else None
    told = f"{done} of {epochs} epochs done" if epochs else ""
    moment = format.moment(datetime.datetime.fromtimestamp(folder.changed, datetime.UTC))
    return Unfinished(folder.changed, (state, stage, told, f"last written {moment}", folder.uri))


def _epochs(spec: URI) -> int | None:
    try:
        return _TrainSpec.model_validate_json(files.read(spec)).epochs
    except (FileNotFoundError, ValidationError):
        return None
