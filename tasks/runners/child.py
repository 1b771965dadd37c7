"""Child processes that end with this one, even when it is killed."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


class Child:
    """A running command. It ends, with all processes that it started, at `end` or when this process ends.

    `remove` is a folder to delete afterwards; `grace_s` is how many seconds the command may take to end on request.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path = Path(os.sep),
        remove: str | None = None,
        grace_s: float = 3.0,
    ) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._read = 0
        arguments = [str(grace_s), remove or "", "--", *command]
        self._process = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__).with_name("supervise.py")), *arguments],
            env=env,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
        )

    @property
    def running(self) -> bool:
        """True until the command has ended."""
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
        """Return the output since the last call; only whole lines while the command runs."""
        ended = not self.running
        text = os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size - self._read, self._read)
        whole = text if ended else text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace")

    def dismiss(self) -> None:
        """Tell the command and everything it started to end; do not wait."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        """End the command and everything it started; wait until that is done."""
        self.dismiss()
        self._process.wait()
        self._log.close()
