"""A watchdog in each training worker: what makes no progress ends, so that Ray Train starts it again."""

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterator

EXIT_CODE = 86
"""With which a worker that hung ends."""


@contextlib.contextmanager
def watched(*, limit_s: float) -> Iterator[Callable[[], None]]:
    """Gives a function to call at every sign of progress; when it is not called for `limit_s`, the process ends.

    Neither Ray's health check nor Prefect's time-outs see a training thread that is stuck, in a collective that another
    rank never enters for one. Where every thread stood is written to standard error first.
    """
    seen, ended = [time.monotonic()], threading.Event()

    def beat() -> None:
        seen[0] = time.monotonic()

    def watch() -> None:
        while not ended.wait(min(1.0, limit_s / 4)):
            if time.monotonic() - seen[0] > limit_s:
                print(f"WARNING: no progress for {limit_s:.0f} s: this worker ends, to be started again", flush=True)
                faulthandler.dump_traceback(file=2)
                os._exit(EXIT_CODE)

    threading.Thread(target=watch, name="watchdog", daemon=True).start()
    try:
        yield beat
    finally:
        ended.set()
