"""Leases: which process works on a target and what it uses; a second run waits for the first one's result.

Leases only save work. Safety does not depend on them: only one commit wins, and each attempt writes its own files. Two
processes that both believe they hold a lease waste work but do no harm, so wall clocks are good enough. A lease ends
when the *reader's* clock has passed its `expires`. At least three quarters of a lease are always left, so a reader
whose clock is ahead takes over too early only if it is ahead by more than that; a reader whose clock is behind waits
that much longer.

The lease on a target is the newest file in `<root>/leases/<target's name>/`: `000001.json`, `000002.json`, ... A
process takes the lease by creating the next number, which succeeds for only one; only the holder then writes that file.
The newest file stays, released or not, so that numbers only grow; the next holder deletes the older ones. A frozen or
slow process can therefore do no harm through an older number: if it overwrites the file, nobody reads it; if it creates
the file again, it lists the folder once more and finds the newer number.
"""

import contextlib
import datetime
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from storage import files, lease_records, reference
from storage.lease_records import Record, after, file_of, folder_of, now
from storage.process import Process
from storage.uri import URI, Root, redact_text

_BEATS, _LONGEST_BEAT_S = 4, 600.0
"""Renewals per duration of a lease, and longest time between two."""
_POLL_S = 2.0
"""Time between two looks of a waiting run at the lease."""


class Held(RuntimeError):
    """Another process holds the lease."""

    def __init__(self, target: URI, holder: Record) -> None:
        super().__init__(target, holder)
        self.target = target
        self.holder = holder

    def __str__(self) -> str:
        until = f"{self.holder.expires.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.target} is leased by {self.holder.owner} on {self.holder.host} until at least {until}"


class Lease:
    """Lease that this process took with `take`; its methods are thread-safe."""

    def __init__(self, root: Root, record: Record, *, ttl_s: float) -> None:
        self.target = record.target
        self.generation = record.generation
        self.owner = record.owner
        self._root = root
        self._record = record
        self._ttl_s = ttl_s
        self._writing = threading.RLock()
        self.lost = False
        """True once a renewal found that another process took the lease; never false again."""
        self._expired_once = False

    def renew(self, *, uses: Iterable[URI] = ()) -> bool:
        """Extend the lease to `ttl_s` from now, and record that the holder also reads `uses`.

        Returns false, without writing, if it is lost or released. Errors of the storage pass through: the lease may
        then still be held, which the next renewal finds out.
        """
        return self._replace(released=False, uses=uses)

    def release(self) -> None:
        """Release the lease, so that others can take it at once; do nothing if it is lost or released."""
        self._replace(released=True)

    def has_lapsed(self, *, within_s: float = 0.0) -> bool:
        """Return whether the lease had expired at any time, as after a suspension; others then counted it as free.

        With `within_s`, also whether it will have expired in that many seconds, unless it is renewed.
        """
        with self._writing:
            self._expired_once |= now() >= self._record.expires
            return self.lost or self._expired_once or after(within_s) >= self._record.expires

    def _replace(self, *, released: bool, uses: Iterable[URI] = ()) -> bool:
        with self._writing:
            if self.lost or self._record.released:
                return False
            self.has_lapsed()  # the renewal would hide it
            folder = folder_of(self._root, self.target.name)
            # `!=`, not `>`: our own file is missing if somebody emptied the folder.
            if lease_records.newest_generation(folder) != self.generation:
                self.lost = True
                return False
            used = _references(self._root, [*self._record.used(self._root), *uses])
            changes = {"expires": after(self._ttl_s), "released": released, "uses": used}
            record = self._record.model_copy(update=changes)
            files.put(file_of(folder, self.generation), record.model_dump_json(indent=1).encode())
            self.has_lapsed()  # during a slow write
            self._record = record
            return not released


def take(root: Root, target: URI, *, owner: str, ttl_s: float = 60.0, uses: Iterable[URI] = ()) -> Lease:
    """Take the lease on `target` for `ttl_s` from now; of several processes at once exactly one succeeds.

    Garbage collection keeps `uses`, the results below `root` that the holder reads.

    The lease is free if nobody took it, or if its last holder released it, let it expire, or is a process of this
    machine that has ended. Raises `Held` if it is not free, `Damaged` if its file cannot be read. Nothing renews it;
    `held` does.
    """
    folder, used = folder_of(root, target.name), _references(root, uses)
    while True:
        looked = now()
        newest = lease_records.newest(root, target.name)
        if newest and newest.is_live(at=looked):
            raise Held(target, newest)
        record = Record(
            target=target,
            generation=newest.generation + 1 if newest else 1,
            owner=owner,
            process=Process.current(),
            expires=after(ttl_s),
            uses=used,
        )
        if lease_records.create(folder, record):
            return Lease(root, record, ttl_s=ttl_s)


@contextlib.contextmanager
def held(
    root: Root,
    target: URI,
    *,
    owner: str,
    ttl_s: float = 60.0,
    uses: Iterable[URI] = (),
    waits: bool = True,
    is_done: Callable[[], bool] = lambda: False,
    on_wait: Callable[[Record], None] = lambda holder: None,
) -> Iterator[Lease | None]:
    """Hold the lease on `target` inside the block, renewed by a thread; yield none if `is_done()`.

    `owner` is the name that waiting processes see; gc keeps `uses`. A lease that is not renewed expires after `ttl_s`
    seconds. While another process holds it, wait, or raise `Held` if not `waits`; `on_wait` is called once, when the
    wait begins. `is_done` returns whether the result exists. It is called after every look at the lease, even a free
    one: the other process may have committed and released it a moment ago.
    """
    lease, is_waiting = None, False
    while not lease:
        try:
            lease = take(root, target, owner=owner, ttl_s=ttl_s, uses=uses)
        except Held as refused:
            if is_done():
                yield None
                return
            if not waits:
                raise
            if not is_waiting:
                on_wait(refused.holder)
            is_waiting = True
            time.sleep(_POLL_S)
    with _renewed(lease, every_s=min(ttl_s / _BEATS, _LONGEST_BEAT_S)):
        if not is_done():
            yield lease
            return
    yield None


def holder(root: Root, target: URI) -> Record | None:
    """Return the holder of a live lease on `target`, or none."""
    looked = now()
    newest = lease_records.newest(root, target.name)
    return newest if newest and newest.is_live(at=looked) else None


def warn(what: str, error: Exception) -> None:
    """Log `what`, an error that must not end the run, with its reason."""
    reason = redact_text(" ".join(str(error).split())) or type(error).__name__
    logging.getLogger(__name__).warning("%s (%s)", what, reason)


@contextlib.contextmanager
def _renewed(lease: Lease, *, every_s: float) -> Iterator[None]:
    ended, name = threading.Event(), f"lease-{lease.target.name}"
    threading.Thread(target=_renew, args=(lease, ended, every_s), name=name, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        try:
            lease.release()
        except Exception as error:  # the work is done; a failed release must not undo it
            warn(f"the lease on {lease.target} could not be released; it will expire", error)


def _renew(lease: Lease, ended: threading.Event, every_s: float) -> None:
    has_failed = False
    while not ended.wait(every_s):
        try:
            if not lease.renew():
                return
            has_failed = False
        except Exception as error:  # the next renewal may succeed, whatever the error
            if not has_failed:
                warn(f"the lease on {lease.target} could not be renewed; retrying every {every_s:g} s", error)
            has_failed = True


def _references(root: Root, uris: Iterable[URI]) -> tuple[str, ...]:
    """Return the references of those `uris` that are results below `root`."""
    return tuple(sorted({name for uri in uris if (name := reference.of(uri, root=root)) != uri}))
