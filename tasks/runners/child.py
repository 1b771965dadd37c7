"""Child processes that end with this one, even when it is killed.

Each runs below a supervisor, which is this file as a program: it uses the standard library only.
"""

import codecs
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S, _LIMIT_S = 6.0, 10.0


class Child:
    """A running command. It ends, with all processes that it started, at `end` or when this process ends.

    `remove` is a folder to delete afterwards; `grace_s` is how many seconds the command may take to end on request.
    Standard output goes to `stdout`, by default to the same file as standard error.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path = Path(os.sep),
        remove: str | None = None,
        grace_s: float = 3.0,
        stdout: IO[bytes] | None = None,
    ) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._read, self._decode = 0, codecs.getincrementaldecoder("utf-8")("replace").decode
        arguments = [str(grace_s), remove or "", "--", *command]
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__, *arguments],
            env=env,
            stdin=subprocess.PIPE,
            stdout=stdout or self._log,
            stderr=self._log,
            start_new_session=True,
            cwd=cwd,
        )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, 128 and the signal's number if a signal ended it; None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Return everything written so far, standard output and error together."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def new_output(self) -> str:
        """Return the output since the last call."""
        output = os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size - self._read, self._read)
        self._read += len(output)
        return self._decode(output)

    def end(self) -> None:
        """End the command and everything it started; wait until that is done."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._log.close()


def supervise() -> int:
    """Run a command until it ends or standard input closes; return its exit code, as a shell does.

    `python child.py GRACE_S FOLDER_TO_REMOVE -- COMMAND`: the owner closes standard input or dies, even by SIGKILL.
    Every process that the command started ends too, also outside its process group: this process is a Linux child
    subreaper, so it adopts orphans and ends them all before it exits.
    """
    (grace_s, folder), command = sys.argv[1:3], sys.argv[4:]
    for caught in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(caught, lambda *_: None)  # the command would inherit SIG_IGN
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable and not os.read(sys.stdin.fileno(), 1024):
            break
    _end(child, grace_s=float(grace_s))
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    code = child.returncode or 0
    return code if code >= 0 else 128 - code


def _end(child: "subprocess.Popen[bytes]", *, grace_s: float) -> None:
    """Terminate the command, then kill every process that is left.

    Other supervisors among them get some seconds first, to end their own commands and to clean up.
    """
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    started = time.monotonic()
    while (pids := _children()) and time.monotonic() - started < _LIMIT_S:
        for pid in pids:
            if _is_like_this_one(pid) and time.monotonic() - started < _PATIENCE_S:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _is_like_this_one(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.fsencode(__file__) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _children() -> list[int]:
    """Return the living processes whose parent is this one; zombies are left out."""
    own, pids = str(os.getpid()), []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if parent == own and state != "Z":
            pids.append(int(entry.parent.name))
    return pids


if __name__ == "__main__":
    raise SystemExit(supervise())
