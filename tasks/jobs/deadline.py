"""Deadlines that interrupt even a blocking call in the main thread, and threads for work that they must interrupt."""

import contextlib
import logging
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from storage.error_policy import Permanent

_AGAIN_S = 5.0
"""Seconds until the alarm repeats, in case some code has swallowed the exception."""
_GIVE_UP_S = 1.5
"""Seconds that abandoned work may take to end: Ray kills a job three seconds after asking it to stop."""
_Result = TypeVar("_Result")


class DeadlineExceeded(Permanent):
    """An operation took longer than its deadline."""


@contextlib.contextmanager
def deadline(seconds: float | None, *, again_s: float = _AGAIN_S) -> Iterator[None]:
    """Raise `DeadlineExceeded` inside the block once it has taken `seconds`, even in a call that blocks.

    It uses the kernel's alarm signal, since nothing else interrupts such a call. Signals reach the main thread only: a
    block in another thread has no deadline. Deadlines may be nested; None sets none.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_alarm(signum: int, frame: types.FrameType | None) -> None:
        raise DeadlineExceeded(f"not done within {seconds:.0f} s; use a longer --stage-timeout")

    if 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= seconds:  # the surrounding deadline ends first
        yield
        return
    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, on_alarm)
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds, again_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - started)), every)


def run_in_thread(work: Callable[[], _Result], *, give_up: Callable[[], None] = lambda: None) -> _Result:
    """Run `work` in another thread and return its result; always call `give_up` at the end, even after a signal.

    Deadline and termination signals reach the main thread, which waits here. They end the job at once: they neither
    count as a worker's failure nor wait until a blocking `ray.get` returns.
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
        thread.join(_GIVE_UP_S)  # else it would continue to call a Ray that this process is leaving
        if thread.is_alive():  # it blocks in a call that will fail: after the job's end nobody needs that error
            logging.getLogger("ray.train").setLevel(logging.CRITICAL)
