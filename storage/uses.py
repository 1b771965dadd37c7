"""Use markers: `uses/<run>.json` names the results that a run reads and writes, so that garbage collection keeps them.

A run writes its marker before it reads and deletes it when it has succeeded. The marker of a run that failed or was
killed stays: its job on a cluster may go on, and the same command resumes from its results. Garbage collection counts
a marker for `DAYS` days after it was written.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator

from pydantic import TypeAdapter

from storage import files, reference
from storage.manifest import Damaged
from storage.uri import URI, Root

FOLDER = "uses"
"""Folder below a root for the markers."""
DAYS = 7
"""Days after the last write of a marker for which it counts."""
FORGETTING = "forget"
"""Name of the marker of a run without an image to forget, which reads nothing that was made of the image."""
_REFERENCES = TypeAdapter(tuple[str, ...])


@contextlib.contextmanager
def using(root: Root, uris: Iterable[URI], *, run: str) -> Iterator[Callable[[Iterable[URI]], None]]:
    """Name `uris` in the marker of `run` below `root`; yield a function that names more.

    The marker goes with the end of the block, unless that is an error; one that cannot be deleted expires.
    """
    marker, named = root.child(f"{FOLDER}/{run}.json"), set[URI]()

    def use(uris: Iterable[URI]) -> None:
        named.update(uris)
        references = sorted(reference.of(uri, root=root) for uri in named)
        files.put(marker, _REFERENCES.dump_json(tuple(references), indent=1))

    use(uris)
    yield use
    with contextlib.suppress(OSError):
        files.remove(marker)


def used(root: Root, *, since: float) -> set[URI]:
    """Return the URIs in the markers that were written after `since` (seconds since 1970); raises `Damaged`."""
    uris = set[URI]()
    for marker in markers(root, since=since):
        with contextlib.suppress(FileNotFoundError):  # its run has ended meanwhile
            try:
                uris |= {reference.resolve(name, root=root) for name in _REFERENCES.validate_json(files.read(marker))}
            except ValueError:  # also pydantic's
                raise Damaged(f"{marker} cannot be read; delete it when no run is active below {root}") from None
    return uris


def markers(root: Root, *, since: float) -> list[URI]:
    """Return the markers that were written after `since` (seconds since 1970)."""
    folder = root.child(FOLDER)
    entries = [entry for entry in files.walk(folder) if entry.path.endswith(".json") and entry.modified > since]
    return [folder.child(entry.path) for entry in entries]
