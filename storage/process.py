"""This process: its identity, by which others find out whether it has ended; how it uses memory; its proxies."""

import contextlib
import ctypes
import gc
import importlib.util
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # parameters of glibc's `mallopt`, from its malloc.h
_LARGEST = 2**25  # largest mmap threshold, in bytes, that 64-bit glibc accepts
_HEAP = 2**26  # most bytes of one heap of a thread that is not the main thread, in 64-bit glibc

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


class Process(BaseModel, frozen=True, extra="forbid"):
    """Identity of one process among all that ever ran; without /proc, it cannot be distinguished from others."""

    host: str
    """Name of the machine or container."""
    boot: str | None
    """The kernel's boot id, new at every boot."""
    pid_namespace: str | None
    """PID namespace in which `pid` is valid: containers may share a kernel and a host name, but not this."""
    pid: int = Field(ge=1, lt=2**31)
    """Process id; the kernel may reuse it after the process ends."""
    started: int | None
    """Clock ticks from the boot of the kernel to the start of the process."""

    @classmethod
    def current(cls) -> Self:
        """Return the identity of this process."""
        boot = namespace = None
        with contextlib.suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            namespace = os.readlink("/proc/self/ns/pid")
        _, started = _state_and_start(os.getpid())
        return cls(host=socket.gethostname(), boot=boot, pid_namespace=namespace, pid=os.getpid(), started=started)

    def has_ended(self) -> bool:
        """Return whether the process has provably ended; never true for a process on another host."""
        current = Process.current()
        if None in (self.boot, self.pid_namespace, self.started):
            return False
        if (self.host, self.boot, self.pid_namespace) != (current.host, current.boot, current.pid_namespace):
            return False
        try:
            os.kill(self.pid, 0)  # /proc may hide other users' processes
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        state, started = _state_and_start(self.pid)
        return started is not None and (started != self.started or state in ("Z", "X"))


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


def keep_memory() -> None:
    """Keep the memory of a batch's tensors for the next batch; otherwise the kernel zeroes thousands of pages again.

    It counts for all threads. Use it in processes that compute on the CPU; without glibc it does nothing.
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
        hosts = ",".join(dict.fromkeys(filter(None, [*direct, *_LOOPBACK])))
        os.environ.update(no_proxy=hosts, NO_PROXY=hosts)
    if importlib.util.find_spec("socksio") is None:  # Prefect's client fails over a SOCKS proxy that it need not use
        for name in [*_PROXIES, *map(str.upper, _PROXIES)]:
            if os.environ.get(name, "").lower().startswith("socks"):
                del os.environ[name]


def _state_and_start(pid: int) -> tuple[str | None, int | None]:
    """Read state and start time of a local process from /proc; the name before them may contain any characters."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None, None
    return fields[0], int(fields[19])  # the 3rd and the 22nd in proc(5)
