"""What lies below a storage root: every result with its files, committed or not, and the scratch of attempts."""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, get_args

from storage import files, manifest
from storage.files import Entry
from storage.manifest import Damaged, Kind, Manifest
from storage.uri import URI, Root, masked

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""Every kind of result, what is made from others after what it is made from."""
SCRATCH: Final = "scratch"
"""What attempts keep for themselves, in a folder that is called like the result."""
SHELVES: Final[dict[str, str]] = {
    "files": "downloads",
    "raw": "datasets/raw",
    "prepared": "datasets/prepared",
    "checkpoint": "checkpoints",
    "predictions": "predictions",
    "evaluation": "evaluations",
    "report": "reports",
    SCRATCH: "runs",
}
"""Where the folders of each kind lie below a root; whatever else lies there is none of ours."""
_NOT_SHELVES: Final = ("leases", "registry")
"""Where else a folder lies for each target or data set."""

_THREADS = 8
"""How much is looked at at once: on S3 each look takes a round trip or two."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Folder:
    """One folder of a shelf as it was when somebody looked."""

    uri: URI
    """Where it is."""
    kind: str
    """What its manifest says it is; without one, what belongs on its shelf."""
    found: Sequence[Entry]
    """Every file in it, whether the manifest lists it or not."""
    manifest: Manifest | None = None
    """None when it is not committed, or damaged."""
    parents: dict[str, URI] = dataclasses.field(default_factory=dict)
    """What it was made from, by role."""
    damage: str = ""
    """Why it cannot be looked into, or its manifest cannot be understood."""

    @property
    def size(self) -> int:
        """Bytes of all files in it."""
        return sum(entry.size for entry in self.found)

    @property
    def changed(self) -> float:
        """When a file in it was last written: seconds since 1970."""
        return max((entry.modified for entry in self.found), default=0.0)

    @property
    def committed(self) -> float | None:
        """When its manifest was written: seconds since 1970; none when it has none."""
        return next((entry.modified for entry in self.found if entry.path == manifest.NAME), None)


def places(root: Root, kinds: Iterable[str] = SHELVES) -> list[tuple[URI, str]]:
    """Where something may lie on the shelves of `kinds`, and its kind, sorted by kind and name."""
    wanted = set(kinds)
    shelves = [(kind, root.child(shelf)) for kind, shelf in SHELVES.items() if kind in wanted]
    with ThreadPoolExecutor(_THREADS) as pool:
        names = pool.map(files.children, [shelf for _, shelf in shelves])
        return [
            (shelf.child(name), kind) for (kind, shelf), below in zip(shelves, names, strict=True) for name in below
        ]


def check_links(root: Root) -> None:
    """Raise `ValueError` naming `--storage` when a shelf, or a folder on one, is a link that leads out of `root`.

    `root` itself may be a link. What lies in the folders is looked at when it is read or written.
    """
    if root.is_s3:
        return
    for shelf in ("datasets", *SHELVES.values(), *_NOT_SHELVES):
        folder = root.child(shelf)
        links = [place for place in [folder, *map(folder.child, files.children(folder))] if os.path.islink(place)]
        for place in links:
            if not place.lies_in(root):
                raise ValueError(
                    f"--storage: {place} is a link that leads out of {root}; link {root} as a whole instead"
                )


def survey(found: Sequence[tuple[URI, str]]) -> list[Folder]:
    """The folders at these `places` that have files in them, or cannot be looked into, in their order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return [folder for folder in pool.map(lambda place: look(*place), found) if folder.found or folder.damage]


def look(uri: URI, kind: str = "") -> Folder:
    """One folder as it is now, committed or not; without a manifest it is of `kind`."""
    folder = _with_files(Folder(uri=uri, kind=kind, found=()))
    # The files first: a manifest that is among them was written last, so the others that it lists are too.
    return folder if folder.committed is None else _with_manifest(folder)


def find(uri: URI, *, with_files: bool = True) -> Folder:
    """What is committed at `uri`, without looking for files where nothing is: it may be any place."""
    folder = _with_manifest(Folder(uri=uri, kind="", found=()))
    return _with_files(folder) if with_files and folder.manifest else folder


def _with_files(folder: Folder) -> Folder:
    try:
        return dataclasses.replace(folder, found=files.walk(folder.uri))
    except Exception as error:
        return dataclasses.replace(folder, damage=_unreadable(folder.uri, error))


def _with_manifest(folder: Folder) -> Folder:
    try:
        made = manifest.load(folder.uri)
    except FileNotFoundError:
        rest = [entry for entry in folder.found if entry.path != manifest.NAME]
        return dataclasses.replace(folder, found=rest)
    except (Damaged, ValueError) as error:  # it may also lie outside the allowed roots
        return dataclasses.replace(folder, damage=str(error))
    except Exception as error:
        return dataclasses.replace(folder, damage=_unreadable(folder.uri, error))
    parents = {role: URI(parent) for role, parent in made.parents.items()}
    return dataclasses.replace(folder, kind=made.kind, manifest=made, parents=parents)


def _unreadable(uri: URI, error: Exception) -> str:
    """What is to be said of a folder whose storage refuses; raises `error` when it is of another nature."""
    if not files.is_trouble(error):
        raise error
    reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error)
    return f"{uri} cannot be read: {masked(' '.join(reason.split()))}"
