"""Importing what takes seconds."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Nothing is collected inside the context, and nothing that lives at its end is ever looked at again.

    For processes of our own, at their start. Python's garbage collector would go through all of torch, Ray or Prefect
    dozens of times while it is imported: that takes 1.2 times as long (medians of six imports each).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.enable()
