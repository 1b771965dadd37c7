"""Who a process is, so that another one can tell later whether it has ended."""

import contextlib
import os
import socket
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field


class Process(BaseModel):
    """One process among all that ever ran; where there is no /proc, too little is known to tell it from others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    """Name of the machine or container."""
    boot: str | None
    """What the kernel calls the time since it was started."""
    pid_namespace: str | None
    """Where `pid` means this process: containers may share a kernel and a host name, not this."""
    pid: int = Field(ge=1, lt=2**31)
    """Its number, given again to others after its end."""
    started: int | None
    """Clock ticks from the kernel's start to its own."""

    @classmethod
    def current(cls) -> Self:
        """This process."""
        boot = namespace = None
        with contextlib.suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            namespace = os.readlink("/proc/self/ns/pid")
        _, started = _state_and_start(os.getpid())
        return cls(host=socket.gethostname(), boot=boot, pid_namespace=namespace, pid=os.getpid(), started=started)

    def has_ended(self) -> bool:
        """Whether it provably runs no more; of a process on another host nothing is proved."""
        here = Process.current()
        if None in (self.boot, self.pid_namespace, self.started):
            return False
        if (self.host, self.boot, self.pid_namespace) != (here.host, here.boot, here.pid_namespace):
            return False
        try:
            os.kill(self.pid, 0)  # /proc may hide what other users run
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        state, started = _state_and_start(self.pid)
        return started is not None and (started != self.started or state in ("Z", "X"))


def _state_and_start(pid: int) -> tuple[str | None, int | None]:
    """State and start time of a process of this machine, as /proc tells; the name before them may hold anything."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None, None
    return fields[0], int(fields[19])  # the 3rd and the 22nd in proc(5)
