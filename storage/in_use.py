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
from collections.abc import Collection, Iterable, Iterator, Mapping

from storage import error_policy, lease, lease_records, reference
from storage.lease import Held, Lease
from storage.uri import URI, Root

RUN = "_run-"
"""Start of the name of a run's lease; no result's name starts with it."""
_RUN_TTL_S = 24 * 3600.0
_COLLECTOR = "collector"
"""Name of the target that garbage collection leases; no result has this name."""
_COLLECTOR_TTL_S = 120.0
"""Duration of its lease: a few times that of one request to a storage that does not answer."""
_POLL_S = 0.2


class Use:
    """Results of one run, protected from garbage collection; thread-safe."""

    def __init__(self, leases: Mapping[Root, Lease], stack: contextlib.ExitStack) -> None:
        self._leases = dict(leases)
        self._stack = stack

    def add(self, uris: Iterable[URI]) -> None:
        """Protect `uris` too: those that exist when this returns will stay."""
        uris = list(uris)
        for root, held in self._leases.items():
            held.use(uris)
            if held.lost:  # it had lapsed, as after a suspension, and another run took it
                again = _of_run(root, [*held.uses, *uris], owner=held.owner)
                self._leases[root] = self._stack.enter_context(again)
            _await_collector(root)  # even for known URIs: another thread may have added them a moment ago


@contextlib.contextmanager
def using(root: Root, uris: Iterable[URI], *, owner: str) -> Iterator[Use]:
    """Hold a lease that says that the run `owner` uses `uris` and whatever it adds, until the block ends.

    URIs below another root are also protected there if that root is writable; if not, a warning is logged.
    """
    uris = list(uris)
    others = {other for other in map(reference.root_of, uris) if not reference.is_same(other, root)}
    with contextlib.ExitStack() as stack:
        leases = {root: stack.enter_context(_of_run(root, uris, owner=owner))}
        for other in sorted(others):
            try:
                leases[other] = stack.enter_context(_of_run(other, uris, owner=owner))
            except Exception as error:
                if not error_policy.is_storage_error(error):
                    raise
                lease.warn(f"results used from {other} are not protected from gc there: cannot take a lease", error)
        yield Use(leases, stack)


@contextlib.contextmanager
def _of_run(root: Root, uris: Iterable[URI], *, owner: str) -> Iterator[Lease]:
    with contextlib.ExitStack() as stack:
        for number in itertools.count(1):
            target = root.child(f"{RUN}{number}")
            taking = lease.held(root, target, owner=owner, ttl_s=_RUN_TTL_S, uses=uris, waits=False)
            with contextlib.suppress(Held):
                held = stack.enter_context(taking)
                break
        assert held is not None
        _await_collector(root)
        yield held


def used(root: Root) -> Collection[URI]:
    """Return the URIs of all results that live runs use; raises `Damaged` if a lease cannot be parsed."""
    looked = lease_records.now()
    runs = [lease_records.read(root, name) for name in lease_records.names(root) if name.startswith(RUN)]
    return {uri for record in runs if record and record.is_live(at=looked) for uri in record.used(root)}


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
    first = now = lease.holder(root, target)
    if first is not None:
        logging.getLogger(__name__).info("waiting: %s on %s is deleting results", first.owner, first.host)
    while first is not None and now is not None and now.generation == first.generation:
        time.sleep(_POLL_S)
        now = lease.holder(root, target)
