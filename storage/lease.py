"""Leases: who works on a target for long, so that a second run waits for the first one's result.

A lease is a courtesy; safety rests elsewhere: a commit is won by one, and each attempt has files of its own. Two that
both believe they hold a lease waste work and harm nothing, so wall clocks are good enough. A lease is over when the
*reader's* clock has passed its `expires`. A reader whose clock is ahead of the holder's takes over that much too early,
if it is ahead by more than the three quarters of a lease that are always left; one whose clock is behind waits that
much longer.

The lease on a target is the newest file in `<root>/leases/<target's name>/`: `000001.json`, `000002.json`, ... Taking
it is creating the next number, which one alone can do; from then on only that one writes that file. The newest file
stays, released or not, so that numbers only grow; whoever takes the lease removes the older ones. What a frozen or slow
process still does to an older number therefore changes nothing: overwriting it is not seen, and who created it anew
finds the newer one by looking once more.
"""

import contextlib
import dataclasses
import datetime
import logging
import math
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from storage import files
from storage.process import Process
from storage.uri import URI, Root, masked

_NAME = re.compile(r"([0-9]{6,})\.json")
_BEATS = 4
"""How often a lease is renewed in the time that it lasts."""
_POLL_S = 1.0
"""How long a waiting run pauses at first before it looks again."""
_POLL_GROWTH = 1.2
"""How much longer each pause is than the one before."""
_LONGEST_POLL_S = 10.0
"""Where the growth ends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lease, as others see it."""

    owner: str
    """What the holder calls itself, such as the id of its Ray job."""
    host: str
    """Where it runs."""
    expires: datetime.datetime
    """When the lease is over unless it is renewed; UTC."""


class Held(RuntimeError):
    """Somebody else holds the lease."""

    def __init__(self, target: URI, holder: Holder) -> None:
        super().__init__(target, holder)  # both, or it could not be pickled
        self.target = target
        self.holder = holder

    def __str__(self) -> str:
        until = f"{self.holder.expires:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.target} is held by {self.holder.owner} on {self.holder.host} until {until} or longer"


class Record(BaseModel):
    """What the file of a lease says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str
    """What is worked on."""
    generation: int = Field(ge=1)
    """Number of the file."""
    token: str
    """Random, so that a taker whose reply was lost knows its own file again."""
    owner: str
    """See `Holder`."""
    process: Process
    """The process that holds the lease."""
    expires: AwareDatetime
    """See `Holder`."""
    released: bool = False
    """Whether the holder gave it back."""

    def is_live(self) -> bool:
        """Whether it keeps others from taking the lease, by the clock of this process."""
        return not self.released and _now() < self.expires and not self.process.has_ended()

    def holder(self) -> Holder:
        """What others should know of it."""
        return Holder(owner=self.owner, host=self.process.host, expires=self.expires.astimezone(datetime.UTC))


class Lease:
    """A lease that was taken, made by `take`; its methods may be called from several threads."""

    def __init__(self, folder: URI, record: Record, *, ttl_s: float) -> None:
        self.target = URI(record.target)
        self.generation = record.generation
        self.owner = record.owner
        self._folder = folder
        self._record = record
        self._ttl_s = ttl_s
        self._writing = threading.Lock()
        self._lost = False

    @property
    def lost(self) -> bool:
        """Whether the latest renewal found that somebody else took it; once true, it stays so."""
        return self._lost

    def renew(self) -> bool:
        """Hold it for another `ttl_s` from now; false when it is lost or released, and then nothing is written.

        Raises what the storage raises: whether it is still held is then not known, and the next renewal tells.
        """
        return self._replace(released=False)

    def release(self) -> None:
        """Let others take it at once; does nothing when it is lost or released already."""
        self._replace(released=True)

    def _replace(self, *, released: bool) -> bool:
        with self._writing:
            if self._lost or self._record.released:
                return False
            # Not only a newer one: our own is gone when somebody emptied the folder.
            if _newest_generation(self._folder) != self.generation:
                self._lost = True
                return False
            changes = {"expires": _after(self._ttl_s), "released": released}
            record = self._record.model_copy(update=changes)
            files.replace(_place(self._folder, self.generation), _encoded(record))
            self._record = record
            return not released


def take(root: Root, target: URI, *, owner: str, ttl_s: float = 60.0) -> Lease:
    """The lease on `target` for `ttl_s` from now; of several takers at once exactly one gets it.

    It is free when nobody took it, or the last holder released it, let it expire, is a process of this machine that has
    ended, or left a file that cannot be understood. Raises `Held` when it is not free. Nothing renews it: see `held`.
    """
    assert ttl_s > 0, ttl_s
    folder = _folder(root, target)
    while True:
        generation, newest = _newest(folder)
        if newest and newest.is_live():
            raise Held(target, newest.holder())
        record = Record(
            target=target,
            generation=generation + 1,
            token=uuid.uuid4().hex,
            owner=owner,
            process=Process.current(),
            expires=_after(ttl_s),
        )
        if _create(folder, record):
            return Lease(folder, record, ttl_s=ttl_s)


@contextlib.contextmanager
def held(
    root: Root,
    target: URI,
    *,
    owner: str,
    ttl_s: float = 60.0,
    wait_s: float | None = None,
    is_done: Callable[[], bool] = lambda: False,
    on_wait: Callable[[Holder], None] = lambda holder: None,
) -> Iterator[Lease | None]:
    """The lease on `target`, renewed by a thread until the block ends and then released; none once `is_done()`.

    While somebody else holds it, this waits: for `wait_s`, then it raises `Held`, or for as long as it takes. `on_wait`
    is called once, when waiting begins. `is_done` tells whether the result is there and is asked after every look at
    the lease, also when it was free: the other may have committed and released it a moment ago.
    """
    with contextlib.ExitStack() as stack:
        lease = _taken_or_done(
            lambda: take(root, target, owner=owner, ttl_s=ttl_s), wait_s=wait_s, is_done=is_done, on_wait=on_wait
        )
        if lease:
            stack.enter_context(_renewed(lease, every_s=ttl_s / _BEATS))
            if is_done():
                stack.close()
                lease = None
        yield lease


def holder(root: Root, target: URI) -> Holder | None:
    """Who holds a live lease on `target`, none when nobody does; only reads."""
    _, newest = _newest(_folder(root, target))
    return newest.holder() if newest and newest.is_live() else None


def _taken_or_done(
    take_it: Callable[[], Lease],
    *,
    wait_s: float | None,
    is_done: Callable[[], bool],
    on_wait: Callable[[Holder], None],
) -> Lease | None:
    """The lease as soon as it is free, none as soon as `is_done()`; raises `Held` after `wait_s`."""
    deadline = math.inf if wait_s is None else time.monotonic() + wait_s
    pause_s = _POLL_S
    is_waiting = False
    while True:
        try:
            return take_it()
        except Held as refused:
            if is_done():
                return None
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise
            if not is_waiting:
                on_wait(refused.holder)
                is_waiting = True
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * _POLL_GROWTH, _LONGEST_POLL_S)


@contextlib.contextmanager
def _renewed(lease: Lease, *, every_s: float) -> Iterator[None]:
    ended = threading.Event()
    threading.Thread(
        target=_renew, args=(lease, ended, every_s), name=f"lease-{lease.target.name}", daemon=True
    ).start()
    try:
        yield
    finally:
        ended.set()
        if not sys.is_finalizing():  # an abandoned block, ended with the interpreter: s3fs would wait for ever
            _release(lease)


def _release(lease: Lease) -> None:
    try:
        lease.release()
    except Exception as error:  # the work is done, and nobody should lose it to a courtesy
        _warn(lease, "released: it expires by itself", error)


def _renew(lease: Lease, ended: threading.Event, every_s: float) -> None:
    has_failed = False
    while not ended.wait(every_s):
        try:
            if not lease.renew():
                return
            has_failed = False
        except Exception as error:  # whatever it was, the next beat is worth a try
            if not has_failed:
                _warn(lease, f"renewed: tried again every {every_s:g} s", error)
            has_failed = True


def _warn(lease: Lease, what: str, error: Exception) -> None:
    reason = masked(" ".join(str(error).split())) or type(error).__name__
    logging.getLogger(__name__).warning("the lease on %s could not be %s (%s)", lease.target, what, reason)


def _create(folder: URI, record: Record) -> bool:
    """Whether `record` is now the newest; the older ones are removed then."""
    place, content = _place(folder, record.generation), _encoded(record)
    try:
        files.create(place, content)
    except FileExistsError:
        if not _says(place, content):
            return False
    numbers = _generations(folder)
    if any(number > record.generation for number in numbers):  # ours was used and removed before: we were slow
        return False
    with contextlib.suppress(OSError):
        for number in numbers:
            if number < record.generation:
                files.remove(_place(folder, number))
    return True


def _says(uri: URI, content: bytes) -> bool:
    try:
        return files.read(uri) == content
    except FileNotFoundError:
        return False


def _newest(folder: URI) -> tuple[int, Record | None]:
    """The highest generation, 0 when there is none, and what it says, none when it cannot be understood."""
    generation = _newest_generation(folder)
    while generation:
        try:
            return generation, Record.model_validate_json(files.read(_place(folder, generation)))
        except ValidationError:
            return generation, None
        except FileNotFoundError:  # a newer one was taken, and this one removed
            found = _newest_generation(folder)
            if found == generation:
                return generation, None
            generation = found
    return 0, None


def _newest_generation(folder: URI) -> int:
    return max(_generations(folder), default=0)


def _generations(folder: URI) -> list[int]:
    return [int(match[1]) for match in map(_NAME.fullmatch, files.children(folder)) if match]


def _folder(root: Root, target: URI) -> URI:
    return root.child(f"leases/{target.name}")


def _place(folder: URI, generation: int) -> URI:
    return folder.child(f"{generation:06d}.json")


def _encoded(record: Record) -> bytes:
    return record.model_dump_json(indent=1).encode() + b"\n"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _after(seconds: float) -> datetime.datetime:
    return _now() + datetime.timedelta(seconds=seconds)
