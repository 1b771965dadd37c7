"""Use markers: `uses/<run>.json` names the results that a run reads and writes, so that garbage collection keeps them.

A run writes its marker before it reads and deletes it when it has succeeded. The marker of a run that failed or was
killed stays: its job on a cluster may go on, and the same command resumes from its results. Garbage collection counts
a marker for `DAYS` days after it was written.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator

from pydantic import TypeAdapter, ValidationError

from storage import error_policy, files, reference
from storage.manifest import Damaged
from storage.uri import URI, Root, redact_text

FOLDER = "uses"
"""Folder below a root for the markers."""
DAYS = 7
"""Days after the last write of a marker for which it counts."""
_REFERENCES = TypeAdapter(tuple[str, ...])


class Uses:
    """Results that a run uses, named in its markers; thread-safe."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._roots: list[Root] = []
        self._uris: set[URI] = set()
        self._writing = threading.Lock()

    def add(self, uris: Iterable[URI]) -> None:
        """Name `uris` too; garbage collection that starts afterwards keeps them."""
        with self._writing:
            if new := set(uris) - self._uris:
                self._uris |= new
                for root in self._roots:
                    self._write(root)

    def mark(self, root: Root) -> None:
        """Write a marker below `root` too."""
        with self._writing:
            self._write(root)
            self._roots.append(root)

    def remove(self) -> None:
        """Delete the markers; one that cannot be deleted expires."""
        for root in self._roots:
            with _only_warning(f"the marker of this run below {root} is no longer needed but cannot be deleted"):
                files.remove(self._marker(root))

    def _write(self, root: Root) -> None:
        references = {reference.of(uri, root=root) for uri in self._uris}
        files.put(self._marker(root), _REFERENCES.dump_json(tuple(sorted(references)), indent=1))

    def _marker(self, root: Root) -> URI:
        return root.child(f"{FOLDER}/{self._run}.json")


@contextlib.contextmanager
def using(root: Root, uris: Iterable[URI], *, run: str) -> Iterator[Uses]:
    """Name `uris`, and those that the block adds, in the marker of `run` below `root`.

    The marker goes with the end of the block, unless that is an error. Each other root with some of the `uris` gets a
    marker too, if it can be written to; if not, a warning is logged.
    """
    uris = list(uris)
    uses = Uses(run)
    uses.add(uris)
    uses.mark(root)
    for other in {other for other in map(reference.root_of, uris) if not reference.is_same(other, root)}:
        with _only_warning(f"gc of {other} may delete what this run uses there: its marker cannot be written"):
            uses.mark(other)
    yield uses
    uses.remove()


def used(root: Root, *, since: float) -> set[URI]:
    """Return the URIs that the markers below `root` name which were written after `since` (seconds since 1970).

    Raises `Damaged` if a marker cannot be read.
    """
    folder, uris = root.child(FOLDER), set[URI]()
    for entry in files.walk(folder):
        # In folders are the files that an interrupted garbage collection had moved aside.
        if entry.path.endswith(".json") and "/" not in entry.path and entry.modified > since:
            with contextlib.suppress(FileNotFoundError):  # its run has ended meanwhile
                uris |= _read(folder.child(entry.path), root)
    return uris


def _read(marker: URI, root: Root) -> set[URI]:
    try:
        return {reference.resolve(name, root=root) for name in _REFERENCES.validate_json(files.read(marker))}
    except (ValidationError, ValueError):
        raise Damaged(f"{marker} cannot be read; delete it when no run is active below {root}") from None


@contextlib.contextmanager
def _only_warning(problem: str) -> Iterator[None]:
    """Log an error of the storage in the block as `problem` instead of raising it."""
    try:
        yield
    except Exception as error:
        if not error_policy.is_storage_error(error):
            raise
        reason = redact_text(" ".join(str(error).split())) or type(error).__name__
        logging.getLogger(__name__).warning("%s (%s)", problem, reason)
