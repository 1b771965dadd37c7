"""The machine's lock: runs of one user that compute without a cluster take turns.

It only saves time: two runs that compute at once are slow and harm nothing. The kernel releases the lock of a process
however it ends.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

_POLL_S = 0.5


@contextlib.contextmanager
def held(owner: str, *, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock for the block; wait until it is free.

    Args:
        owner: Who holds it, for the logs of other runs.
        on_wait: Called once, with the owner that this run waits for.

    Raises:
        OSError: The lock's file, in the temporary directory, cannot be used.
    """
    path = Path(tempfile.gettempdir(), f"data-to-model-{os.geteuid()}.lock")

    def sign(file: int) -> None:
        os.ftruncate(file, 0)
        os.pwrite(file, owner.encode(), 0)

    lock = FileLock(path, thread_local=False, on_acquired=sign)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.acquire(blocking=False))
        except Timeout:
            on_wait(path.read_text(errors="replace"))
            stack.enter_context(lock.acquire(poll_interval=_POLL_S))
        yield
