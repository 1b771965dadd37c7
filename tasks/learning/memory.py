"""How this process's C library keeps memory."""

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`, from its malloc.h."""
_LARGEST = 2**25
"""Bytes: the most that glibc takes for an mmap threshold on 64 bits."""


def keep() -> None:
    """Keep the memory that a batch's tensors took for the next batch; without it thousands of pages are zeroed anew.

    For a process that computes on the CPU; where there is no glibc, nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
