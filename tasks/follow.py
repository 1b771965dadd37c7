"""Following a Ray job: from its growing log to log records, and to the error that ended it."""

import json
import re
from typing import Any

from tasks.jobs.spec import ERROR, PROGRESS
from tasks.stage import logger

_CHATTER = re.compile(
    r"core_worker\.cc:|Progress bars disabled|Dataset dataset_\S+ execution finished|Setting up process group|"
    r"^\s*$|Runtime env is setting up|Running entrypoint for job|\tINFO |\tWARNING .*(Token auth|Progress bars)"
    r"|Tip: |FutureWarning|UserWarning|DeprecationWarning|warnings\.warn|\[State Transition\]"
    r"|Attempting to start training worker"
    r"|Started training worker|Checkpoint successfully created|Reporting training result|- \(node_id=|world_rank="
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class JobFailed(RuntimeError):
    """A Ray job ended without its result; the message says why. Trying again may help."""


class JobRefused(JobFailed):
    """A Ray job ended with an error that it would meet again."""

    permanent = True


class Follower:
    """Turns a growing job log into log records: progress, what workers print, and at the end the error."""

    def __init__(self) -> None:
        self._seen = 0
        self._error: dict[str, Any] | None = None
        self._last: list[str] = []

    def read(self, log: str, *, ended: bool) -> None:
        """Handle the lines that are new in `log`; the last one only when it is whole."""
        end = len(log) if ended else log.rfind("\n") + 1
        new, self._seen = log[self._seen : end], max(end, self._seen)
        for line in new.splitlines():
            self._line(_ANSI.sub("", line))

    def error(self, otherwise: str) -> JobFailed:
        """The error that ended the job, with its last lines logged."""
        if self._error is None:
            for line in self._last:
                logger().error(line)
            return JobFailed(otherwise)
        kind = JobRefused if self._error["permanent"] else JobFailed
        return kind(f"{self._error['type']}: {self._error['message']}")

    def _line(self, line: str) -> None:
        if PROGRESS in line:
            content = _json_after(PROGRESS, line)
            if content:
                text = f"{content['what']}: {content['done']:,}/{content['total']:,} {content['note']}".rstrip()
                logger().info("%s", text, extra={"progress": content})
        elif ERROR in line:
            self._error = _json_after(ERROR, line) or self._error
        elif _CHATTER.search(line):
            logger().debug("%s", line)
        else:
            self._last = [*self._last[-29:], line]
            logger().info("%s", line, extra={"job": True})


def _json_after(marker: str, line: str) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(line.partition(marker)[2])
    except ValueError:
        return None
    return content
