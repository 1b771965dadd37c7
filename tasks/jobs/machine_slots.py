"""Slots: which runs on one machine compute now, on which cores and GPUs, and which wait for their turn.

A slot is advisory, as a lease is: if two runs both believe that they have the machine, they are slow and harm nothing.
So any failure of a slot is logged and never fails a run.

A folder holds a ticket for each run that waits or computes: `000001.json`, `000002.json`, ... in order of arrival. The
run's process keeps its ticket locked (`flock`), so that the kernel releases it however the process ends. Tickets are
created, examined and removed only while the folder itself is locked. A process touches its ticket every few seconds;
after a minute without a touch it counts as frozen and is no longer waited for, as with a lease. A stage that
ends well leaves its ticket to the next stage of its run, for some seconds or until the run ends. Otherwise a run would
wait, between its training and a short prediction, for the trainings of all other runs.
"""

import contextlib
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from tasks.jobs import slot_tickets
from tasks.jobs.deadline import deadlines_paused
from tasks.jobs.slot_tickets import Claim, Ticket

_POLL_S = 0.5
_LOOK_S = 5.0
"""Seconds between two attempts of a waiting run to take its turn, and between two checks whether its result exists."""
_BEAT_S = 15.0
_FROZEN_S = 60.0
"""Seconds between two touches of a ticket, and those without a touch after which its process counts as frozen."""
_PATIENCE_S = 10.0
"""Seconds that the folder may stay locked; a process normally holds the lock for milliseconds."""


@contextlib.contextmanager
def turn(
    claim: Claim,
    *,
    is_done: Callable[[], bool] = lambda: False,
    on_wait: Callable[[str], None] = lambda who: None,
    on_turn: Callable[[], None] = lambda: None,
    on_trouble: Callable[[str], None] = lambda text: None,
) -> Iterator[Callable[[], None]]:
    """Wait for the first turn, then hold the resources of `claim` for the block; deadlines are paused during the wait.

    Yields a function that keeps the slot for the run's next stage; call it at the end of successful work.

    The wait also ends once `is_done`. `on_wait` is called with whom this waits for, once, and again when that changes;
    `on_turn` at the end of a wait, if there was one; `on_trouble` with the reason why it does not wait.
    """
    with contextlib.ExitStack() as stack:
        held = None
        try:
            held = stack.enter_context(_queued(claim))
            with deadlines_paused():
                if _await_turn(held, is_done, on_wait):
                    on_turn()
        except OSError as error:
            on_trouble(f"runs on this machine do not take turns: {error}")
        yield held.keep if held else lambda: None


def release(folder: Path, run: str) -> None:
    """Remove the slot that is kept for a next stage of `run`, since there is none."""
    with contextlib.suppress(OSError), _locked(folder):
        for ticket in _live(folder):
            if ticket.kept_until and ticket.claim.run == run:
                _path(folder, ticket.number).unlink(missing_ok=True)


class _Held:
    """A ticket of this process: the open file and its content."""

    def __init__(self, folder: Path, file: int, ticket: Ticket) -> None:
        self.folder, self.file = folder, file
        self.write(ticket)

    def write(self, ticket: Ticket) -> None:
        self.ticket = ticket
        os.ftruncate(self.file, 0)
        os.pwrite(self.file, ticket.model_dump_json().encode(), 0)
        self.touch()

    def keep(self) -> None:
        with contextlib.suppress(OSError), _locked(self.folder):
            if self.ticket.given is not None and self.ticket.claim.run:
                self.write(self.ticket.model_copy(update={"kept_until": time.monotonic() + slot_tickets.KEPT_S}))

    def touch(self) -> None:
        """Mark this process as alive; the clock does not advance while the machine is suspended."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        os.utime(self.file, ns=(now, now))


@contextlib.contextmanager
def _queued(claim: Claim) -> Iterator[_Held]:
    """Hold a new ticket of this process, the last in the queue, until the block ends."""
    folder = _made(Path(claim.folder), shared=claim.shared)
    with _locked(folder):
        number = max((int(path.stem) for path in _tickets(folder)), default=0) + 1
        file = os.open(_path(folder, number), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        with contextlib.ExitStack() as failing:
            failing.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = _Held(folder, file, Ticket(number=number, claim=claim))
            failing.pop_all()
    ended = threading.Event()
    thread = threading.Thread(target=_touch_until, args=(held, ended), name="slot", daemon=True)
    thread.start()
    try:
        yield held
    finally:
        ended.set()
        thread.join()
        if held.ticket.kept_until is None:
            with contextlib.suppress(OSError):
                _path(folder, number).unlink()
        fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may still have the file open
        os.close(file)


def _touch_until(held: _Held, ended: threading.Event) -> None:
    while not ended.wait(_BEAT_S):
        with contextlib.suppress(OSError):
            held.touch()


def _await_turn(held: _Held, is_done: Callable[[], bool], on_wait: Callable[[str], None]) -> bool:
    """Wait for the turn, or until `is_done`; return True if it had to wait."""
    told, looked = "", time.monotonic()
    while True:
        with _locked(held.folder):
            text = _try(held)
        if not text:
            return bool(told)
        if text != told:
            told = text
            on_wait(text)
        if time.monotonic() - looked > _LOOK_S:
            looked = time.monotonic()
            with contextlib.suppress(OSError):  # if storage does not answer now, ask again later
                if is_done():
                    return True
        time.sleep(_POLL_S)


def _try(held: _Held) -> str:
    """Take what the ticket claims if it is free and return an empty string; else return whom it waits for."""
    mine, live = held.ticket, _live(held.folder)
    ours = [each for each in live if each.kept_until and each.claim.run == mine.claim.run]
    others = [each for each in live if each != mine and each not in ours and each.conflicts(mine)]
    running = [each for each in others if each.given is not None]
    first = [each for each in others if each.given is None and each.number < mine.number and not ours]
    used = {core for each in running for core in each.given or ()}
    free = [core for core in mine.claim.cores if core not in used]
    if not first and len(free) >= mine.claim.num_cores and not any(map(mine.shares_gpu, running)):
        for each in ours:
            _path(held.folder, each.number).unlink(missing_ok=True)
        held.write(mine.model_copy(update={"given": free[: mine.claim.num_cores]}))
        return ""
    return _describe_queue(running, first)


def _describe_queue(running: Sequence[Ticket], first: Sequence[Ticket]) -> str:
    now = " and ".join(f"{each.claim.who} is {each.claim.doing} on this machine" for each in running)
    if not now:
        return f"{first[0].claim.who} is next in line on this machine"
    return now + (f"; {len(first)} more in line before this run" if first else "")


def _live(folder: Path) -> list[Ticket]:
    """Return the tickets of live processes, in order, and remove those of ended ones; the folder must be locked."""
    found = []
    for path in _tickets(folder):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                ticket = _read(file)
                if _is_free(file) and not (ticket and ticket.is_kept()):
                    path.unlink()
                elif ticket and time.monotonic() - os.fstat(file).st_mtime < _FROZEN_S:
                    found.append(ticket)
            finally:
                os.close(file)
    return found


def _read(file: int) -> Ticket | None:
    try:
        return Ticket.model_validate_json(os.read(file, os.fstat(file).st_size))
    except ValidationError:
        return None


def _is_free(file: int) -> bool:
    """Return True if no process has locked `file`; this takes a shared lock, which closing the file releases."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"


def _tickets(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if path.stem.isdecimal())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"cannot lock {folder}; a process that holds the lock may be frozen") from None
            time.sleep(0.02)
        yield
    finally:
        os.close(file)


def _made(folder: Path, *, shared: bool) -> Path:
    """Create `folder` if it is missing; raise `PermissionError` if another user could write to it."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o777 if shared else 0o700, parents=shared)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    if not shared and not is_own:
        raise PermissionError(f"{folder} is not owned by this user, or is writable by others")
    return folder
