"""Memory of a process: Python's garbage collector during imports, and the C library's allocator."""

import contextlib
import ctypes
import gc
from collections.abc import Iterator

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's `mallopt`, from its malloc.h
_LARGEST = 2**25  # largest mmap threshold, in bytes, that 64-bit glibc accepts


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


def keep() -> None:
    """Keep the memory of a batch's tensors for the next batch; otherwise the kernel zeroes thousands of pages again.

    Use it in processes that compute on the CPU; without glibc it does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
