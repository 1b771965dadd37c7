"""Faster imports of large libraries."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Disable Python's garbage collector inside the block, then freeze the surviving objects.

    Use it at the start of a process of the pipeline. The collector would scan all of torch, Ray or Prefect dozens of
    times during their import, which then takes 1.2 times as long (medians of six imports each).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.enable()
