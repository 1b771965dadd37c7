"""Locks of this machine, one for each core and GPU, by which runs compute one after the other.

They are advisory: two runs that compute at the same time are slow and harm nothing. The kernel releases the locks of a
process however it ends. Only the run that holds the lock `queue` takes others, and it takes all that it needs: so runs
never wait for each other in a circle, and none overtakes the one that is next.
"""

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from tasks.resources import machine

LOCK_DIR = "PIPELINE_LOCK_DIR"
"""Environment variable: folder of the locks, for runs of several users; unset: a folder of this user."""
_PRIVATE = "/tmp/pipeline-locks-{user}"
_QUEUE = "queue"
_POLL_S, _LOOK_S = 0.5, 5.0
"""Seconds between two attempts of a waiting run to take a lock, and between two checks whether its result exists."""


class ResultExists(Exception):
    """Another run has made the result that this one waited to compute."""


@contextlib.contextmanager
def held(
    owner: str, *, gpus: Sequence[str], on_wait: Callable[[str], None], is_done: Callable[[], bool]
) -> Iterator[None]:
    """Hold as many cores as this run uses, and `gpus`, for the block; wait until they are free.

    Args:
        owner: Who holds them, for the logs of other runs.
        gpus: Numbers or names, as in CUDA_VISIBLE_DEVICES.
        on_wait: Called with whom this run waits for, once, and again when that changes.
        is_done: Whether another run has made the result meanwhile.

    Raises:
        ResultExists: `is_done` was true during the wait.
        OSError: The folder of the locks cannot be used.
    """
    run = _Run(_folder(), owner, on_wait, is_done)
    cores = [f"core-{number}" for number in sorted(os.sched_getaffinity(0))]
    with contextlib.ExitStack() as locks:
        with contextlib.ExitStack() as queue:
            run.take(queue, [_QUEUE], 1, doing="is next in line")
            run.take(locks, cores, machine.cores(), doing="is computing")
            run.take(locks, [f"gpu-{name.replace(os.sep, '_')}" for name in gpus], len(gpus), doing="is computing")
        yield


class _Run:
    """A run that takes locks in `folder`, and what it does while it waits for them."""

    def __init__(self, folder: Path, owner: str, on_wait: Callable[[str], None], is_done: Callable[[], bool]) -> None:
        self._folder, self._owner = folder, owner
        self._on_wait, self._is_done = on_wait, is_done
        self._message, self._looked = "", time.monotonic()

    def take(self, stack: contextlib.ExitStack, names: list[str], number: int, *, doing: str) -> None:
        """Take `number` of the locks `names` into `stack`; `doing` says in the log what the owners of busy ones do."""
        busy, taken = [self._folder / f"{name}.lock" for name in names], 0
        while taken < number:
            for path in busy.copy():
                lock = FileLock(path, mode=0o666, thread_local=False, on_acquired=self._sign)
                with contextlib.suppress(Timeout):
                    stack.enter_context(lock.acquire(blocking=False))
                    busy.remove(path)
                    taken += 1
                if taken == number:
                    return
            owners = sorted({path.read_text(errors="replace") for path in busy})
            self._wait(" and ".join(f"{owner} {doing}" for owner in owners))

    def _sign(self, file: int) -> None:
        os.ftruncate(file, 0)
        os.pwrite(file, self._owner.encode(), 0)

    def _wait(self, message: str) -> None:
        if message != self._message:
            self._on_wait(f"{message} on this machine")
            self._message = message
        if time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            with contextlib.suppress(OSError):  # if storage does not answer now, ask again later
                if self._is_done():
                    raise ResultExists
        time.sleep(_POLL_S)


def _folder() -> Path:
    """Return the folder of the locks; raise `PermissionError` if another user could write to that of this user."""
    if shared := os.environ.get(LOCK_DIR):
        Path(shared).mkdir(parents=True, exist_ok=True)
        return Path(shared)
    folder = Path(_PRIVATE.format(user=os.geteuid()))
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not owned by this user, or is writable by others")
    return folder
