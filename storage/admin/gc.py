"""Garbage collection: mark what is needed, and sweep what is not needed and old."""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator

from storage import champions, files, manifest, uses
from storage.admin import catalog
from storage.admin.catalog import SCRATCH, Folder
from storage.kinds import KINDS
from storage.manifest import Damaged
from storage.terminal import count
from storage.uri import FINGERPRINT_LENGTH, URI, Root

_DAY_S = 24 * 3600
_OURS = re.compile(rf".+-[0-9a-f]{{{FINGERPRINT_LENGTH}}}", re.DOTALL)
"""Folder names that a run creates; a folder with another name and without a manifest may not belong to this project."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removal:
    """One folder or file that may be deleted."""

    uri: URI
    """The whole folder, or a file or folder in it."""
    size: int
    """Total bytes of the files that this deletes."""
    why: str


class Garbage:
    """Garbage below a root: all that is `keep_days` old (at least 1) and not needed, as `data-to-model gc` explains.

    `now` is the time by the storage's clock: seconds since 1970. Raises `Damaged` if a champion is missing or something
    cannot be read that may say what is needed.
    """

    def __init__(self, root: Root, *, keep_days: int, now: float) -> None:
        self._root = root
        self._now = now
        self._keep_s = keep_days * _DAY_S
        self._folders = catalog.read_folders(catalog.list_folders(root))
        self._committed: dict[str, Folder] = {}
        for folder in self._folders:
            self._add(folder)
        young = [folder.uri for folder in self._folders if folder.manifest and not self._is_old(folder.committed or 0)]
        named = uses.used(root, since=now - uses.DAYS * _DAY_S)
        self._named = {uri.name for uri in named}
        self._needed = self._with_ancestors([*young, *named, *self._kept_by_registry()])

    def find(self) -> list[Removal]:
        """Return what may be deleted, each result before the results it was made from."""
        order = [SCRATCH, *reversed(KINDS)]
        folders = sorted(self._folders, key=lambda folder: order.index(folder.kind))
        return [removal for folder in folders for removal in self._judge(folder)] + list(self._old_markers())

    def remove(self, removals: Iterable[Removal]) -> Iterator[Removal]:
        """Delete `removals` one by one; yield each that is deleted."""
        for removal in removals:
            catalog.remove(removal.uri)
            yield removal

    def _kept_by_registry(self) -> Iterator[URI]:
        """Yield the champions with what was made with them, and the previous champions."""
        current = set[str]()
        for model in champions.registered_models(self._root):
            decisions = champions.decisions(self._root, model)
            promoted = [each.champion for each in champions.promotion_stack(decisions)[-2:] if each.champion]
            yield from promoted
            for champion in promoted[-1:]:
                current.add(champion.name)
                if self._find(champion) is None:
                    raise Damaged(f"the champion {champion} is not committed; restore it, or promote another")
        for kind in (kind.name for kind in KINDS.values() if kind.stays_with_champion):
            for folder in [folder for folder in self._committed.values() if folder.kind == kind]:
                if not current.isdisjoint(parent.name for parent in folder.parents.values()):
                    current.add(folder.uri.name)
                    yield folder.uri

    def _with_ancestors(self, uris: Iterable[URI]) -> set[str]:
        """Return the names of `uris` and their ancestors.

        Names rather than URIs, because a root may be reached by several paths. Names end with a fingerprint, so they
        are unique.
        """
        names, pending = set[str](), list(uris)
        while pending:
            uri = pending.pop()
            if uri.name not in names:
                names.add(uri.name)
                if folder := self._find(uri):
                    pending += folder.parents.values()
        return names

    def _find(self, uri: URI) -> Folder | None:
        """Return the result at `uri`, which may also be younger or lie below another root; none if there is none."""
        if uri.name not in self._committed:
            self._add(catalog.find(uri, with_files=False))
        return self._committed.get(uri.name)

    def _add(self, folder: Folder) -> None:
        if folder.damage:
            raise Damaged(folder.damage)
        if folder.manifest:
            self._committed[folder.uri.name] = folder

    def _judge(self, folder: Folder) -> Iterator[Removal]:
        """Yield the whole `folder`, or if it stays, the old files that its manifest does not list."""
        if not (folder.manifest or _OURS.fullmatch(folder.uri.name)):
            return
        changed = folder.changed if folder.committed is None else folder.committed
        needed = self._named if folder.kind == SCRATCH else self._needed  # an attempt only while a run names its result
        if folder.uri.name not in needed and self._is_old(changed):
            what = "scratch files" if folder.kind == SCRATCH else "no manifest"
            age = f"committed {self._age(changed)} ago, not needed"
            why = age if folder.manifest else f"{what}, unchanged for {self._age(changed)}"
            yield Removal(uri=folder.uri, size=folder.size, why=why)
        elif folder.manifest:
            listed = {manifest.NAME, *(file.path for file in folder.manifest.files)}
            listed |= {os.path.dirname(path) for path in listed}  # on S3, a key may be named like a folder
            for entry in folder.entries:
                if self._is_old(entry.modified) and entry.path not in listed:
                    why = f"not listed in the manifest, unchanged for {self._age(entry.modified)}"
                    yield Removal(uri=folder.uri.child(entry.path), size=entry.size, why=why)

    def _old_markers(self) -> Iterator[Removal]:
        """Yield the use markers that no longer count."""
        folder = self._root.child(uses.FOLDER)
        for entry in files.walk(folder):
            if self._now - entry.modified >= uses.DAYS * _DAY_S:
                why = f"marker of a run that wrote it {self._age(entry.modified)} ago"
                yield Removal(uri=folder.child(entry.path), size=entry.size, why=why)

    def _is_old(self, time: float) -> bool:
        return self._now - time >= self._keep_s

    def _age(self, time: float) -> str:
        return count(int((self._now - time) // _DAY_S), "day")
