"""Deadlines that really end what they are set for."""

import contextlib
import logging
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

_AGAIN_S = 5.0
"""How soon the alarm comes again, should somebody have swallowed it."""
_GIVE_UP_S = 1.5
"""How long work that is given up may take: Ray kills a job three seconds after it told it to stop."""
_Result = TypeVar("_Result")


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


def aside(work: Callable[[], _Result], *, give_up: Callable[[], None] = lambda: None) -> _Result:
    """Return what `work` does, in a thread of its own; tell it to `give_up` when an alarm or a signal comes first.

    These come to the main thread. There they end the job, and are not taken for a worker's fault; nor are they put off,
    as `ray.get` would until its answer is there.
    """
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return done.result()
    finally:
        give_up()
        thread.join(_GIVE_UP_S)  # else it would go on asking a Ray that this process is leaving
        if thread.is_alive():  # in a call that blocks, and will fail: nobody's news after what ended the job
            logging.getLogger("ray.train").setLevel(logging.CRITICAL)
