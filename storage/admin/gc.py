"""Garbage collection: find results and files that are no longer needed; delete them without harm to active runs."""

import contextlib
import dataclasses
import functools
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence

from storage import files, in_use, lease, lease_records, manifest, s3
from storage.admin import catalog
from storage.admin.catalog import SCRATCH, Folder
from storage.admin.needed import NeededResults
from storage.failpoints import failpoint
from storage.files import Entry
from storage.kinds import KINDS
from storage.lease_records import SHELF as LEASES
from storage.manifest import Damaged
from storage.terminal import count
from storage.uri import FINGERPRINT_LENGTH, URI, Root

_DAY_S = 24 * 3600
_OURS = re.compile(rf".+-[0-9a-f]{{{FINGERPRINT_LENGTH}}}", re.DOTALL)
"""Folder names that a run creates; a folder with another name and without a manifest may not belong to this project."""
_TEMPORARY = re.compile(r"(?:[^/]+/)*?\.tmp-[^/]*")
"""A path down to its first temporary component, a file or folder that is not complete yet."""
_ASIDE = f"{LEASES}/collector/.tmp-"
"""Start of the places to which folders and files are moved before they are deleted, on a disk; what a killed gc leaves
there is an incomplete write to the next one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removal:
    """One folder or file that may be deleted."""

    uri: URI
    """A whole folder, or a file or folder in it."""
    why: str
    entries: Sequence[Entry]

    @property
    def size(self) -> int:
        """Total bytes of the files that this deletes."""
        return sum(entry.size for entry in self.entries)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """All removals in one folder."""

    folder: Folder
    removals: Sequence[Removal]


class Garbage:
    """Garbage below a root: finds and deletes it.

    Every method raises `Damaged`, and nothing more is deleted, if the needed results cannot be determined because a
    decision of the registry, a manifest, a lease or a folder cannot be read, or a champion is missing.
    """

    def __init__(self, root: Root, *, keep_days: int, now: float | None = None) -> None:
        self._root = root
        self._keep_s = keep_days * _DAY_S
        self._now = time.time() if now is None else now
        self._needs = NeededResults(root)
        self._seen: set[URI] = set()
        self._attempts: set[str] = set()
        """Names of the results with scratch files."""
        self._folders = self._arrivals()

    def plan(self) -> list[Batch]:
        """Return all removals, each result before the results it was made from; deletes nothing."""
        needed = self._needs.names()
        order = [SCRATCH, LEASES, *reversed(KINDS)]
        folders = [*self._folders, catalog.read_folder(self._root.child(LEASES), LEASES)]
        folders.sort(key=lambda folder: order.index(folder.kind))
        batches = [Batch(folder=folder, removals=self._judge(folder, needed)) for folder in folders]
        return [batch for batch in batches if batch.removals]

    def remove(self, batch: Batch, *, has_lapsed: Callable[[], bool] = lambda: False) -> list[Removal]:
        """Delete and return what is still garbage in `batch`, after checking again that nothing needs it.

        Deletes nothing more, and sends no further request, once `has_lapsed()` returns True, since other runs may then
        use results or make them again.
        """
        self._arrivals()
        folder = catalog.read_folder(batch.folder.uri, batch.folder.kind)
        self._learn(folder)
        planned = {removal.uri for removal in batch.removals}
        removals = [removal for removal in self._judge(folder, self._needs.names()) if removal.uri in planned]
        remove = self._remove_on_s3 if folder.uri.is_s3 else self._remove_on_disk
        removed = [removal for removal in removals if remove(folder, removal, has_lapsed)]
        self._seen.difference_update(removal.uri for removal in removed)
        return removed

    def _remove_on_disk(self, folder: Folder, removal: Removal, has_lapsed: Callable[[], bool]) -> bool:
        """Move `removal` aside in one step, then delete it there; what is made again meanwhile has its usual place."""
        aside = self._root.child(f"{_ASIDE}{uuid.uuid4().hex}")
        os.makedirs(aside.parent, exist_ok=True)
        if has_lapsed():
            return False
        with contextlib.suppress(FileNotFoundError):
            os.rename(removal.uri, aside)
        if (has_lapsed() or self._is_leased(folder)) and not os.path.lexists(removal.uri):
            with contextlib.suppress(FileNotFoundError):
                os.rename(aside, removal.uri)  # a run uses it, or is making it again
            return False
        failpoint("collect", removal.uri)
        files.remove(aside)
        return True

    def _remove_on_s3(self, folder: Folder, removal: Removal, has_lapsed: Callable[[], bool]) -> bool:
        """Delete the files that were listed, the manifest before the others, and no newer ones."""
        uris = [folder.uri.child(entry.path) for entry in removal.entries]
        first = [uri for uri in uris if uri == folder.uri.child(manifest.NAME)]
        rest = [uri for uri in uris if uri not in first]
        is_gone = s3.remove_listed(first, has_lapsed=has_lapsed)
        if first and self._is_leased(folder):  # a run is making it again, with the same file names
            return False
        return is_gone and s3.remove_listed(rest, has_lapsed=has_lapsed)

    def _arrivals(self) -> list[Folder]:
        """Return the folders that are new since the last call, and count what live leases use as needed from now on."""
        self._needs.keep(in_use.used(self._root))
        places = [place for place in catalog.list_folders(self._root) if place[0] not in self._seen]
        folders = catalog.read_folders(places)
        self._seen.update(folder.uri for folder in folders)
        self._attempts.update(folder.uri.name for folder in folders if folder.kind == SCRATCH)
        for folder in folders:
            self._learn(folder)
        looked, read = lease_records.now(), functools.partial(lease_records.newest, self._root)
        for record in catalog.map_in_threads(read, self._attempts):
            if record and record.is_live(at=looked):
                self._needs.keep(record.used(self._root))
        return folders

    def _learn(self, folder: Folder) -> None:
        """Count as needed: results that are young or leased, and the inputs of attempts that may still be resumed."""
        if folder.damage:
            raise Damaged(folder.damage)
        self._needs.know(folder)
        if folder.kind == SCRATCH:
            last = lease_records.newest(self._root, folder.uri.name)
            if last and self._reason(folder, ()) is None:
                self._needs.keep(last.used(self._root))
        elif folder.manifest and (self._is_young(folder) or self._is_leased(folder)):
            self._needs.keep([folder.uri])

    def _judge(self, folder: Folder, needed: Collection[str]) -> list[Removal]:
        is_ours = folder.manifest or folder.kind == LEASES or _OURS.fullmatch(folder.uri.name)
        if not is_ours or not folder.entries:
            return []
        why = self._reason(folder, needed)
        removals = [Removal(uri=folder.uri, why=why, entries=folder.entries)] if why else list(self._strays(folder))
        return [] if removals and self._is_leased(folder) else removals

    def _reason(self, folder: Folder, needed: Collection[str]) -> str | None:
        unchanged_s = self._now - folder.changed
        if folder.kind == SCRATCH and self._needs.is_committed(folder.uri.name):
            return "scratch files of a committed result"
        if folder.kind == LEASES or folder.uri.name in needed:
            return None
        if folder.kind == SCRATCH:
            is_old = unchanged_s >= max(self._keep_s, _DAY_S)
            return f"scratch files unchanged for {_days(unchanged_s)}" if is_old else None
        if folder.manifest is None:
            return f"no manifest, unchanged for {_days(unchanged_s)}" if unchanged_s >= _DAY_S else None
        if self._is_young(folder):
            return None
        return f"committed {_days(self._now - (folder.committed or 0))} ago, not needed"

    def _strays(self, folder: Folder) -> Iterator[Removal]:
        """Yield the removals in a folder that stays: files that no manifest lists, and incomplete writes."""
        listed = {file.path for file in folder.manifest.files} if folder.manifest else set()
        incomplete: dict[str, list[Entry]] = {}
        for entry in folder.entries:
            unchanged_s = self._now - entry.modified
            if temporary := _TEMPORARY.match(entry.path):
                incomplete.setdefault(temporary[0], []).append(entry)
            elif folder.manifest and entry.path not in {*listed, manifest.NAME} and unchanged_s >= _DAY_S:
                why = f"not listed in the manifest, unchanged for {_days(unchanged_s)}"
                yield Removal(uri=folder.uri.child(entry.path), why=why, entries=[entry])
        for path, entries in incomplete.items():
            if self._now - max(entry.modified for entry in entries) >= _DAY_S:
                yield Removal(uri=folder.uri.child(path), why="incomplete write", entries=entries)

    def _is_young(self, folder: Folder) -> bool:
        return self._now - (folder.committed or 0) < self._keep_s

    def _is_leased(self, folder: Folder) -> bool:
        return lease.holder(self._root, folder.uri) is not None


def _days(seconds: float) -> str:
    return count(int(seconds // _DAY_S), "day")
