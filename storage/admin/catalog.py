"""Content of a storage root: every result with its files, committed or not, and the scratch files of attempts."""

import dataclasses
import datetime
import re
from collections.abc import Iterable, Sequence
from typing import Final

from storage import access, champions, files, manifest
from storage.failpoints import failpoint
from storage.files import Entry
from storage.kinds import KINDS, RUNS
from storage.manifest import Damaged, Manifest
from storage.process import in_threads
from storage.uri import URI, Root, parse_root

SCRATCH: Final = "scratch"
"""Kind of a run folder: files of attempts, in a folder with the name of the result."""
_SHELVES: Final = {kind.name: kind.folder for kind in KINDS.values()} | {SCRATCH: RUNS}
"""Folder below a root (shelf) for each kind; any other folder there does not belong to the pipeline."""
NAME = re.compile(r"[^/:]+-[0-9a-f]{12}")
THREADS = 8
"""Folders read at once: on S3 each takes a round trip or two."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Folder:
    """One folder of a shelf, as it was when it was read."""

    uri: URI
    kind: str
    """Kind according to its manifest; without a manifest, the kind of its shelf."""
    entries: Sequence[Entry]
    """Every file in it, whether the manifest lists it or not."""
    manifest: Manifest | None = None
    """None if the folder is not committed or its manifest cannot be read."""
    parents: dict[str, URI] = dataclasses.field(default_factory=dict)
    damage: str = ""
    """Reason why its manifest cannot be read; empty if it can."""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def changed(self) -> float:
        """Time of the last write to a file in it: seconds since 1970."""
        return max((entry.modified for entry in self.entries), default=0.0)

    @property
    def committed(self) -> float | None:
        """Time at which its manifest was written: seconds since 1970; none without a manifest."""
        return next((entry.modified for entry in self.entries if entry.path == manifest.NAME), None)

    @property
    def created(self) -> datetime.datetime:
        """Time of its commit by its manifest, or else that at which its manifest or newest file was written."""
        if self.manifest:
            return self.manifest.created
        return datetime.datetime.fromtimestamp(self.committed or self.changed, datetime.UTC)


def list_folders(root: Root, kinds: Iterable[str] = _SHELVES) -> list[tuple[URI, str]]:
    """List every folder on the shelves of `kinds`, with its kind, sorted by kind and name."""
    wanted = set(kinds)
    shelves = [(kind, root.child(shelf)) for kind, shelf in _SHELVES.items() if kind in wanted]
    names = in_threads(files.children, [shelf for _, shelf in shelves], threads=THREADS)
    return [(shelf.child(name), kind) for (kind, shelf), below in zip(shelves, names, strict=True) for name in below]


def named(root: Root, word: str, *, option: str) -> URI:
    """Return the result that a user names: by its URI, the name of its folder, `champion` or `champion:NAME`.

    It may not exist, if it is not a champion. Raises `ValueError` naming `option`.
    """
    if word.partition(":")[0] == "champion":
        try:
            return champions.require_champion(root, word.partition(":")[2])
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from None
    places = [kind.place(root, word) for kind in KINDS.values()] if NAME.fullmatch(word) else []
    return next(filter(manifest.is_committed, places), None) or parse_root(word, option=option)


def committed(uri: URI, *, option: str, kinds: Sequence[str] = tuple(KINDS)) -> Manifest:
    """Load the manifest of `uri`; raise `ValueError` naming `option` if no result of these kinds is committed there."""
    try:
        access.check_readable(uri, option=option)
        result = manifest.load(uri)
    except FileNotFoundError:
        raise ValueError(
            f"{option}: nothing is committed at {uri}; use a result of `data-to-model ls`, or champion:NAME"
        ) from None
    except Damaged as error:
        raise ValueError(f"{option}: {error}") from None
    if not re.search(r"-[0-9a-f]{12}$", uri.name):  # later results are found by their parents' fingerprints
        raise ValueError(f"{option}: the name must end in '-' and a 12-digit hexadecimal fingerprint, got {uri}")
    if result.kind not in kinds:
        raise ValueError(f"{option} must be of kind {' or '.join(kinds)}, got {uri} of kind {result.kind}")
    return result


def read_folders(places: Sequence[tuple[URI, str]]) -> list[Folder]:
    """Read the folders that `list_folders` returned; return those with files or damage, in the same order."""
    folders = in_threads(lambda place: _read(*place), places, threads=THREADS)
    return [folder for folder in folders if folder.entries or folder.damage]


def _read(uri: URI, kind: str) -> Folder:
    folder = Folder(uri=uri, kind=kind, entries=files.walk(uri))
    # List the files first: a manifest is written last, so if it is in the list, all files that it names are too.
    return folder if folder.committed is None else _with_manifest(folder)


def find(uri: URI, *, with_files: bool = True) -> Folder:
    """Read the folder committed at `uri`; list no files if nothing is committed, since `uri` may be any folder."""
    folder = _with_manifest(Folder(uri=uri, kind="", entries=()))
    return dataclasses.replace(folder, entries=files.walk(uri)) if with_files and folder.manifest else folder


def remove(uri: URI) -> None:
    """Delete a result or a file, the manifest first: what has one is complete."""
    failpoint("remove", uri)
    files.remove(uri.child(manifest.NAME))
    files.remove(uri)


def descendants(root: Root, uri: URI) -> list[URI]:
    return [folder.uri for folder in made_from(read_folders(list_folders(root, KINDS)), [uri])]


def made_from(folders: Sequence[Folder], uris: Iterable[URI]) -> list[Folder]:
    """Return those of `folders` that were made from `uris`, directly or not, by their names."""
    names, family = {uri.name for uri in uris}, list[Folder]()
    while made := [
        folder
        for folder in folders
        if folder.uri.name not in names and not names.isdisjoint(parent.name for parent in folder.parents.values())
    ]:
        family += made
        names |= {folder.uri.name for folder in made}
    return family


def _with_manifest(folder: Folder) -> Folder:
    try:
        committed = manifest.load(folder.uri)
    except FileNotFoundError:
        rest = [entry for entry in folder.entries if entry.path != manifest.NAME]
        return dataclasses.replace(folder, entries=rest)
    except Damaged as error:
        return dataclasses.replace(folder, damage=str(error))
    parents = {role: committed.parent(role, of=folder.uri) for role in committed.parents}
    return dataclasses.replace(folder, kind=committed.kind, manifest=committed, parents=parents)
