"""Memory settings of this process's C library."""

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's `mallopt`, from its malloc.h
_LARGEST = 2**25  # largest mmap threshold, in bytes, that 64-bit glibc accepts


def keep() -> None:
    """Keep the memory of a batch's tensors for the next batch; otherwise the kernel zeroes thousands of pages again.

    Use it in processes that compute on the CPU; without glibc it does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
