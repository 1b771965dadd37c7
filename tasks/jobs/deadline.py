"""Deadlines that really end what they are set for."""

import contextlib
import signal
import threading
import time
import types
from collections.abc import Iterator

_AGAIN_S = 5.0
"""How soon the alarm comes again, should somebody have swallowed it."""


class DeadlineExceeded(Exception):
    """Something took longer than it was given."""

    permanent = True


@contextlib.contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Raises `DeadlineExceeded` out of the block once it has taken `seconds`, also out of a call that blocks.

    An alarm of the kernel's, since nothing in the process can interrupt such a call; it comes to the main thread alone,
    and a block in another thread has no deadline. Deadlines may be nested.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_alarm(signum: int, frame: types.FrameType | None) -> None:
        raise DeadlineExceeded(f"not done within {seconds:.0f} s; give it longer with --deadline MINUTES")

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, on_alarm)
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - started)), every)
