"""Records of the results that each run uses, from its plan to its report; garbage collection keeps those results.

A lease names the run that makes a result. A record, `<root>/leases/in-use/<random>.json`, names the run that reads
results, reused ones included. Nothing waits for a record, so it may last long. It ends when its process has provably
ended, or a day after its last renewal, unless its process is still seen on this machine, running or stopped. For a
process on another host, only the one-day limit applies.

Garbage collection and a run cannot miss each other. The collector takes its own lease, then reads the records, then
deletes. The run writes its record, then waits for any collector that started earlier, then looks for results.
"""

import contextlib
import datetime
import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator

from pydantic import AwareDatetime, BaseModel, ValidationError

from storage import error_policy, files, lease, lease_records, reference
from storage.manifest import Damaged
from storage.process import Process
from storage.uri import URI, Root

_SHELF = "leases/in-use"
_COLLECTOR = "collector"
"""Name of the target that garbage collection leases; no result has this name."""
_TTL = datetime.timedelta(days=1)
_EVERY_S = 600.0
"""Seconds between two renewals of a record."""
_COLLECTOR_TTL_S = 120.0
"""Duration of its lease: a few times that of one request to a storage that does not answer."""
_POLL_S = 0.2


class UseRecord(BaseModel, frozen=True):
    """Results that the run `owner` uses."""

    owner: str
    process: Process
    expires: AwareDatetime
    """Time at which the record ends unless it is renewed."""
    uses: list[str]
    """References of the results, relative to the root."""

    def is_live(self) -> bool:
        """Return whether the run may still need its results, as far as this process can tell."""
        return not self.process.has_ended() and (lease_records.now() < self.expires or self.process.is_running_here())


class Use:
    """Results of one run, protected from garbage collection until `end`; its methods are thread-safe."""

    def __init__(self, root: Root, *, owner: str) -> None:
        self._root = root
        self._owner = owner
        self._place = root.child(f"{_SHELF}/{uuid.uuid4().hex}.json")
        self._uses: set[str] = set()
        self._writing = threading.Lock()
        self._ended = threading.Event()

    def add(self, uris: Iterable[URI]) -> None:
        """Protect `uris` too: those that exist when this returns will stay. Ignore URIs outside the root."""
        named = {reference.of(uri, root=self._root): uri for uri in uris}
        with self._writing:
            new = {name for name, uri in named.items() if name != uri} - self._uses
            if not new or self._ended.is_set():
                return
            self._uses |= new
            self._write()
        _await_collector(self._root)

    def end(self) -> None:
        """End the protection and delete the record."""
        with self._writing:
            self._ended.set()
            self._tolerantly("removed; it will expire", lambda: files.remove(self._place))

    def keep(self) -> None:
        """Renew the record until `end`; write it again if it was deleted."""
        while not self._ended.wait(_EVERY_S):
            with self._writing:
                if not self._ended.is_set():
                    self._tolerantly(f"renewed; retrying every {_EVERY_S:g} s", self._write)

    def _write(self) -> None:
        record = UseRecord(
            owner=self._owner, process=Process.current(), expires=lease_records.now() + _TTL, uses=sorted(self._uses)
        )
        files.replace(self._place, record.model_dump_json(indent=1).encode() + b"\n")

    def _tolerantly(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # a failed record must not end the run
            lease.warn(f"{self._place} could not be {what}", error)


@contextlib.contextmanager
def using(root: Root, uris: Iterable[URI], *, owner: str) -> Iterator[Use]:
    """Record that the run `owner` uses `uris` and whatever it adds, until the block ends.

    URIs below another root are also recorded there if that root is writable; if not, a warning is logged.
    """
    uris = list(uris)
    others = {other for other in map(reference.root_of, uris) if not reference.is_same(other, root)}
    with contextlib.ExitStack() as stack:
        for other in sorted(others):
            try:
                stack.enter_context(_on_record(other, uris, owner=owner))
            except Exception as error:
                if not error_policy.is_storage_error(error):
                    raise
                what = f"results used from {other} are not protected from gc there: cannot write a record below it"
                lease.warn(what, error)
        yield stack.enter_context(_on_record(root, uris, owner=owner))


@contextlib.contextmanager
def _on_record(root: Root, uris: Iterable[URI], *, owner: str) -> Iterator[Use]:
    _sweep(root)
    use = Use(root, owner=owner)
    try:
        use.add(uris)
        threading.Thread(target=use.keep, name="in-use", daemon=True).start()
        yield use
    finally:
        if not sys.is_finalizing():  # at interpreter exit s3fs would wait forever
            use.end()


def used(root: Root) -> Collection[URI]:
    """Return the URIs of all results that live runs use; raises `Damaged` if a record cannot be parsed."""
    return {root.child(path) for _, record in _records(root) if record.is_live() for path in record.uses}


@contextlib.contextmanager
def collecting(root: Root) -> Iterator[lease.Lease]:
    """Hold the lease of garbage collection: read `used` again, then delete, inside the block; new runs wait for it.

    Delete nothing once the lease has lapsed: a run may have begun to use results meanwhile.
    """
    with lease.held(root, root.child(_COLLECTOR), owner="gc", ttl_s=_COLLECTOR_TTL_S) as held:
        assert held is not None
        yield held


def _await_collector(root: Root) -> None:
    """Wait until no garbage collection that started before this call is running: it may have missed our record."""
    target = root.child(_COLLECTOR)
    first = now = lease.holder(root, target)
    if first is not None:
        logging.getLogger(__name__).info("waiting: %s on %s is deleting results", first.owner, first.host)
    while first is not None and now is not None and now.generation == first.generation:
        time.sleep(_POLL_S)
        now = lease.holder(root, target)


def _records(root: Root) -> Iterator[tuple[URI, UseRecord]]:
    folder = root.child(_SHELF)
    for name in files.children(folder):
        place = folder.child(name)
        try:
            if name.endswith(".json"):
                yield place, UseRecord.model_validate_json(files.read(place))
        except FileNotFoundError:  # that run has ended
            continue
        except ValidationError:
            raise Damaged(f"{place} cannot be read; delete it when no run is active below {root}") from None


def _sweep(root: Root) -> None:
    with contextlib.suppress(Damaged):
        for place, record in list(_records(root)):
            if not record.is_live():
                files.remove(place)
