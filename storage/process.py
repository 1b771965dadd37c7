"""This process: how it uses memory, its threads, and its proxies."""

import contextlib
import ctypes
import gc
import importlib.util
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
S = TypeVar("S")

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # parameters of glibc's `mallopt`, from its malloc.h
_LARGEST = 2**25  # largest mmap threshold, in bytes, that 64-bit glibc accepts
_HEAP = 2**26  # most bytes of one heap of a thread that is not the main thread, in 64-bit glibc

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that only this machine can reach."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Disable Python's garbage collector for the imports in the block, which take 1.2 times as long with it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.enable()


def keep_memory() -> None:
    """Keep the memory of a batch's tensors for the next batch; otherwise the kernel zeroes thousands of pages again.

    It counts for all threads. Use it in processes that compute or decode on the CPU; without glibc it does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_TOP_PAD, _HEAP)  # keeps the heaps of other threads, whatever the trim threshold


def reach_loopback_directly() -> None:
    """Make this process and its children reach this machine's own servers without a proxy; all else keeps its proxies.

    Call it before such a server is used: its password must not get to a proxy, which could not reach it anyway.
    """
    direct = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")).split(",")
    if "*" not in direct:
        hosts = ",".join(dict.fromkeys(filter(None, [*direct, *LOOPBACK])))
        os.environ.update(no_proxy=hosts, NO_PROXY=hosts)
    if importlib.util.find_spec("socksio") is None:  # Prefect's client fails over a SOCKS proxy that it need not use
        for name in [*_PROXIES, *map(str.upper, _PROXIES)]:
            if os.environ.get(name, "").lower().startswith("socks"):
                del os.environ[name]


def in_threads(function: Callable[[T], S], items: Iterable[T], *, threads: int, ahead: int = 0) -> Iterator[S]:
    """Yield `function(item)` for all items in order; compute the next ones meanwhile in `threads` threads.

    `ahead` more of them keep the threads busy while the next one takes longer than others.
    """
    waiting: deque[Future[S]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads + ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False)  # after an error what was begun is finished: it may be worth keeping
