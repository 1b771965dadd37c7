"""Watchdog of a training worker: ends the process if it makes no progress, so that Ray Train restarts it."""

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterator

EXIT_CODE = 86
"""Exit code of a worker that made no progress."""


@contextlib.contextmanager
def watched(*, limit_s: float) -> Iterator[Callable[[], None]]:
    """Yield a function to call at every sign of progress; end the process if it is not called for `limit_s` seconds.

    Neither Ray's health check nor Prefect's timeouts notice a blocked training thread, for example in a collective that
    another rank never enters. The stacks of all threads go to standard error first.
    """
    seen, ended = [time.monotonic()], threading.Event()

    def beat() -> None:
        seen[0] = time.monotonic()

    def watch() -> None:
        while not ended.wait(min(1.0, limit_s / 4)):
            if time.monotonic() - seen[0] > limit_s:
                print(f"WARNING: no progress for {limit_s:.0f} s: this worker exits and will be restarted", flush=True)
                faulthandler.dump_traceback(file=2)
                os._exit(EXIT_CODE)

    threading.Thread(target=watch, name="watchdog", daemon=True).start()
    try:
        yield beat
    finally:
        ended.set()
