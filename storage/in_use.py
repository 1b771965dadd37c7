"""Leases of runs: each names the results that a run uses, reused ones included, so that gc keeps them.

A run holds one from its plan to its report: the first of `leases/_run-1`, `leases/_run-2`, ... that is free. Nothing
waits for it, so it may last long: it ends with the run, when its process has provably ended, or a day after its last
renewal.

Garbage collection and a run cannot miss each other. The collector takes its own lease, then reads all leases, then
deletes. The run writes its lease, then waits for any collector that started earlier, then looks for results.
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Iterable, Iterator

from storage import error_policy, lease, lease_records, reference
from storage.lease import Held, Lease
from storage.uri import URI, Root

_RUN = "_run-"
"""Start of the name of a run's lease; no result's name starts with it."""
_RUN_TTL_S = 24 * 3600.0
_COLLECTOR = "collector"
"""Name of the target that garbage collection leases; no result has this name."""
_COLLECTOR_TTL_S = 120.0
"""Duration of its lease: a few times that of one request to a storage that does not answer."""
_POLL_S = 0.2


class Use:
    """Results of one run, protected from garbage collection; thread-safe."""

    def __init__(self, stack: contextlib.ExitStack, *, owner: str) -> None:
        self._stack = stack
        self._owner = owner
        self._uris: set[URI] = set()
        self._leases: dict[Root, Lease] = {}

    def add(self, uris: Iterable[URI]) -> None:
        """Protect `uris` too: those that exist when this returns will stay."""
        uris = list(uris)
        self._uris.update(uris)
        for root, held in list(self._leases.items()):
            if not held.renew(uses=uris) and held.lost:  # it had lapsed, as after a suspension, and another took it
                self.protect(root)
            _await_collector(root)  # even for known URIs: another thread may have added them a moment ago

    def protect(self, root: Root) -> None:
        """Take the lease of a run below `root`: the first that is free."""
        for number in itertools.count(1):
            target = root.child(f"{_RUN}{number}")
            taking = lease.held(root, target, owner=self._owner, ttl_s=_RUN_TTL_S, uses=list(self._uris), waits=False)
            with contextlib.suppress(Held):
                held = self._stack.enter_context(taking)
                break
        assert held is not None
        self._leases[root] = held
        _await_collector(root)


@contextlib.contextmanager
def using(root: Root, uris: Iterable[URI], *, owner: str) -> Iterator[Use]:
    """Hold a lease that says that the run `owner` uses `uris` and whatever it adds, until the block ends.

    URIs below another root are also protected there if that root is writable; if not, a warning is logged.
    """
    uris = list(uris)
    with contextlib.ExitStack() as stack:
        use = Use(stack, owner=owner)
        use.add(uris)  # before the leases are taken, which name them
        use.protect(root)
        for other in {other for other in map(reference.root_of, uris) if not reference.is_same(other, root)}:
            try:
                use.protect(other)
            except Exception as error:
                if not error_policy.is_storage_error(error):
                    raise
                lease.warn(f"results used from {other} are not protected from gc there: cannot take a lease", error)
        yield use


def used(root: Root) -> set[URI]:
    """Return the URIs of all results that live runs use; raises `Damaged` if a lease cannot be parsed."""
    looked = lease_records.now()
    records = [lease_records.newest(root, name) for name in lease_records.names(root) if name.startswith(_RUN)]
    return {uri for record in records if record and record.is_live(at=looked) for uri in record.used(root)}


@contextlib.contextmanager
def collecting(root: Root) -> Iterator[Lease]:
    """Hold the lease of garbage collection: read the leases again, then delete, inside the block; new runs wait for it.

    Delete nothing once the lease has lapsed: a run may have begun to use results meanwhile.
    """
    with lease.held(root, root.child(_COLLECTOR), owner="gc", ttl_s=_COLLECTOR_TTL_S) as held:
        assert held is not None
        yield held


def _await_collector(root: Root) -> None:
    """Wait until no garbage collection that started before this call is running: it may have missed our lease."""
    target = root.child(_COLLECTOR)
    first = collector = lease.holder(root, target)
    if first:
        logging.getLogger(__name__).info("waiting: %s on %s is deleting results", first.owner, first.host)
    while first and collector and collector.generation == first.generation:
        time.sleep(_POLL_S)
        collector = lease.holder(root, target)
