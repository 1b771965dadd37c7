"""What nobody needs any more below a storage root, and how it goes without harm to anybody at work."""

import dataclasses
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from storage import files, manifest
from storage.admin import catalog
from storage.admin.catalog import SCRATCH, SHELVES, Folder
from storage.admin.needs import Needs, inputs
from storage.files import Entry
from storage.fingerprint import LENGTH
from storage.manifest import Damaged
from storage.uri import URI, Root

_DAY_S = 24 * 3600
_OURS = re.compile(rf".+-[0-9a-f]{{{LENGTH}}}", re.DOTALL)
"""What a run makes is called so; a folder without a manifest that is called otherwise may be anybody's."""
_TEMPORARY = re.compile(r"(?:[^/]+/)*?\.tmp-[^/]*")
"""A path down to the first component that holds what is not whole yet."""
_LEASES = "leases"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removal:
    """One thing that may go."""

    uri: URI
    """A whole folder, or something in one."""
    why: str
    """In a few words."""
    found: Sequence[Entry]
    """The files that go with it."""

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return sum(entry.size for entry in self.found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """All that may go of one folder."""

    folder: Folder
    """As it was found."""
    removals: Sequence[Removal]
    """The folder as a whole, or things in it."""


class Garbage:
    """What may go below a root, and its removal.

    Every method raises `Damaged` when it cannot be known what is needed, because a decision of the registry, a manifest
    or a folder cannot be read, or a champion is not there: from then on nothing goes.
    """

    def __init__(
        self, root: Root, *, keep_days: int, is_leased: Callable[[URI], bool], now: float | None = None
    ) -> None:
        self._root = root
        self._keep_s = keep_days * _DAY_S
        self._is_leased = is_leased
        self._now = time.time() if now is None else now
        self._needs = Needs(root)
        self._seen: set[URI] = set()
        self._committed: set[str] = set()
        self.is_blocked = False
        """Whether somebody is at work and nothing tells what they read: then all that is committed stays."""
        self._folders = self._arrivals()

    def plan(self) -> list[Batch]:
        """What may go, what was made from others before what it was made from; changes nothing."""
        needed = self._needs.names()
        order = [SCRATCH, _LEASES, *reversed(catalog.KINDS)]
        folders = [*self._folders, catalog.look(self._root.child(_LEASES), _LEASES)]
        folders.sort(key=lambda folder: order.index(folder.kind))
        judged = [Batch(folder=folder, removals=self._judge(folder, needed)) for folder in folders]
        return [batch for batch in judged if batch.removals]

    def remove(self, batch: Batch) -> list[Removal]:
        """Remove what may still go of `batch`, after a new look at it, the leases and the registry; returns what went.

        A committed folder loses its manifest first.
        """
        self._arrivals()
        folder = catalog.look(batch.folder.uri, batch.folder.kind)
        self._learn(folder)
        planned = {removal.uri for removal in batch.removals}
        judged = [removal for removal in self._judge(folder, self._needs.names()) if removal.uri in planned]
        return [removal for removal in judged if self._remove(folder, removal)]

    def _remove(self, folder: Folder, removal: Removal) -> bool:
        if removal.uri == folder.uri and folder.manifest:
            files.remove(folder.uri.child(manifest.NAME))
            if self._has_lease(folder):  # somebody makes it anew already, and the files have the same names
                return False
        files.remove(removal.uri)
        self._seen.discard(removal.uri)
        return True

    def _arrivals(self) -> list[Folder]:
        """What is there since the last time."""
        found = catalog.survey([place for place in catalog.places(self._root) if place[0] not in self._seen])
        self._seen.update(folder.uri for folder in found)
        self._committed.update(folder.uri.name for folder in found if folder.manifest)
        for folder in found:
            self._learn(folder)
        return found

    def _learn(self, folder: Folder) -> None:
        """Count as needed what stays for its age or for somebody at work, and what attempts read that may go on."""
        if folder.damage:
            raise Damaged(folder.damage)
        if folder.kind == SCRATCH:
            read, has_lease = inputs(folder), self._has_lease(folder)
            if has_lease or self._reason(folder, ()) is None:
                self._needs.keep(read)
            self.is_blocked |= has_lease and not read
            return
        self._needs.know(folder)
        if folder.manifest:
            if self._is_young(folder) or self._has_lease(folder):
                self._needs.keep([folder.uri])
        elif self._root.child(f"{SHELVES[SCRATCH]}/{folder.uri.name}") not in self._seen:
            self.is_blocked |= self._has_lease(folder)

    def _judge(self, folder: Folder, needed: Collection[str]) -> list[Removal]:
        """What may go of `folder` when `needed` are the names of what is needed."""
        is_ours = folder.manifest or folder.kind == _LEASES or _OURS.fullmatch(folder.uri.name)
        if not is_ours or not folder.found:
            return []
        why = self._reason(folder, needed)
        found = [Removal(uri=folder.uri, why=why, found=folder.found)] if why else list(self._strays(folder))
        return [] if found and self._has_lease(folder) else found

    def _reason(self, folder: Folder, needed: Collection[str]) -> str | None:
        """Why `folder` may go as a whole, none when it may not."""
        unchanged_s = self._now - folder.changed
        if folder.kind == _LEASES:
            return None
        if folder.kind == SCRATCH:
            if folder.uri.name in self._committed:
                return "scratch of what is committed"
            return f"scratch unchanged for {_days(unchanged_s)}" if unchanged_s >= max(self._keep_s, _DAY_S) else None
        if folder.uri.name in needed:
            return None
        if folder.manifest is None:
            return f"no manifest, unchanged for {_days(unchanged_s)}" if unchanged_s >= _DAY_S else None
        if self._is_young(folder) or self.is_blocked:
            return None
        return f"committed {_days(self._now - (folder.committed or 0))} ago, not needed"

    def _strays(self, folder: Folder) -> Iterator[Removal]:
        """What may go of a folder that stays: files that no manifest lists and what was left half-written."""
        listed = {file.path for file in folder.manifest.files} if folder.manifest else set()
        holding = {path[:end] for path in listed for end, letter in enumerate(path) if letter == "/"}
        temporary: dict[str, list[Entry]] = {}
        for entry in folder.found:
            unfinished = _TEMPORARY.match(entry.path)
            if unfinished:
                temporary.setdefault(unfinished[0], []).append(entry)
            # On S3 a file may be called like the folder of others: its removal would take them along.
            elif folder.manifest and entry.path not in {*listed, *holding, manifest.NAME}:
                yield Removal(uri=folder.uri.child(entry.path), why="not listed in the manifest", found=[entry])
        for path, entries in temporary.items():
            if self._now - max(entry.modified for entry in entries) >= _DAY_S:
                yield Removal(uri=folder.uri.child(path), why="left half-written", found=entries)

    def _is_young(self, folder: Folder) -> bool:
        return self._now - (folder.committed or 0) < self._keep_s

    def _has_lease(self, folder: Folder) -> bool:
        """Whether somebody holds a lease on `folder`, or on what it is scratch of."""
        if folder.kind != SCRATCH:
            return self._is_leased(folder.uri)
        shelves = [shelf for kind, shelf in SHELVES.items() if kind != SCRATCH]
        return any(self._is_leased(self._root.child(f"{shelf}/{folder.uri.name}")) for shelf in shelves)


def _days(seconds: float) -> str:
    days = int(seconds // _DAY_S)
    return f"{days} day" if days == 1 else f"{days} days"
