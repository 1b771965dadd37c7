"""Unfinished work: run folders without a committed result, which are running, waiting or interrupted."""

import dataclasses
import datetime
import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pydantic import BaseModel, Field, ValidationError

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
_THREADS = 8


class _Recipe(BaseModel):
    epochs: int = Field(ge=1)


class _Spec(BaseModel):
    """The part of a training job's spec that is read here."""

    recipe: _Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unfinished:
    """One run folder whose result is not committed."""

    uri: URI
    """The run folder."""
    stage: str
    """Stage that uses the folder, such as `train`."""
    state: str
    """`running`, `waiting` (a live run will start it later) or `interrupted`."""
    host: str
    """Host on which it runs; empty if it is not running."""
    changed: datetime.datetime
    """Time of the last write to a file in it."""
    done: int
    """Latest epoch with a complete checkpoint; 0 if there is none."""
    epochs: int | None
    """Number of epochs to train; none if unknown or not a training."""

    def told(self) -> tuple[str, ...]:
        """Return the cells of its table row, the run folder last."""
        where = f" on {self.host}" if self.host else ""
        epochs = f"{self.done} of {self.epochs} epochs done" if self.epochs else ""
        return f"{self.state}{where}", self.stage, epochs, f"last written {format.moment(self.changed)}", self.uri


def of(root: Root, kinds: Collection[Kind]) -> tuple[list[Unfinished], list[str]]:
    """Return the unfinished results of `kinds`, the latest last, and a line for each damaged folder or record.

    The lease on a result shows whether a run is making it. The lease of a process that died counts as free at once if
    it ran on this machine, else once it has expired.
    """
    wrong: list[str] = []
    try:
        used = {uri.name for uri in in_use.used(root)}
    except Damaged as error:
        used, wrong = set(), [str(error)]
    folders = catalog.survey(catalog.places(root, [SCRATCH]))
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda folder: _unfinished(root, folder, used, kinds), folders))
    wrong += [folder.damage for folder in folders if folder.damage]
    return sorted(filter(None, found), key=lambda one: one.changed), wrong


def lines(found: Sequence[Unfinished], *, columns: int | None) -> Iterator[str]:
    """Yield a table of `found` and, if any work was interrupted, a hint what to do."""
    yield from format.table_of_uris([one.told() for one in found], columns=columns)
    if any(one.state == "interrupted" for one in found):
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
    if files.exists(target.child(manifest.NAME)):
        return None
    waiting_or_not = "waiting" if target.name in used else "interrupted"
    return Unfinished(
        uri=folder.uri,
        stage=stage,
        state="running" if holder else waiting_or_not,
        host=holder.host if holder else "",
        changed=datetime.datetime.fromtimestamp(folder.changed, datetime.UTC),
        done=max((int(match[1]) for match in map(_EPOCH.fullmatch, paths) if match), default=0),
        epochs=_epochs(folder.uri.child("train.json")) if stage == "train" else None,
    )


def _epochs(spec: URI) -> int | None:
    try:
        return _Spec.model_validate_json(files.read(spec)).recipe.epochs
    except (FileNotFoundError, ValidationError):
        return None
