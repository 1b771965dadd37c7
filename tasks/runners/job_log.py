"""Follower of a Ray job: turns its growing log into log records, and into the error that ended it."""

import contextlib
import datetime
import json
import logging
import re
import time

from storage.manifest import JSON
from tasks.jobs.errors import JobFailed, JobRefused
from tasks.jobs.events import EPOCHS, ERROR, PROGRESS
from tasks.orchestration.stage import logger

_CHATTER = re.compile(
    r"^(\((\S+ )?pid=[^)]*\) )?("
    r"\[\d{4}-\d\d-\d\d [\d:,]+ \w \d+ \d+\] core_worker\.cc:\d+: "
    r"|\d{4}-\d\d-\d\d [\d:,]+\tINFO \S+\.py:\d+ -- "
    r"|Reporting training result \d+: TrainingReport\("  # which Ray Train logs under a name of no logger of its own
    r"|\S+ \S+\tWARNING placement_group_cleaner\.py:\d+ -- Failed to query"  # it asks the dashboard, which is off
    r"|(\S+ \S+\tWARNING \S+ -- )?Progress bars disabled\. To enable, set `ray\.data\."
    r"|\S+/site-packages/\S+\.py:\d+: \w*Warning: "  # a library's own code
    r"|(\[rank\d+\]:)?\[W\S* \S+ reducer\.cpp:\d+\] Warning: find_unused_parameters=True was specified"
    r"|Running entrypoint for job \S+: exec python)"
)
"""Lines whose form says that Ray, torch or another library wrote them, with the prefix of a worker or without."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_WARNING = re.compile(r"\bWARNING\b|Warning: |\bERROR\b")

_TELL_EVERY_S = 10.0
"""Seconds between lines of progress at level INFO; progress in between is logged at level DEBUG."""


class Follower:
    """Turn a growing job log into log records, in order: progress, output of workers, and the error at the end."""

    def __init__(self) -> None:
        self._rest = ""  # an incomplete line
        self._error: JobFailed | None = None
        self._last: list[str] = []
        self._last_info_at = float("-inf")
        self._first: tuple[float, float] | None = None  # time and share of the job that was done at the first progress

    def feed(self, text: str, *, ended: bool = False) -> None:
        """Handle the next part of the log; its last line only once that is complete or the log has `ended`."""
        text = self._rest + text
        end = len(text) if ended else text.rfind("\n") + 1
        self._rest = text[end:]
        for line in text[:end].splitlines():
            self.line(_ANSI.sub("", line))

    def error(self, otherwise: str) -> JobFailed:
        """Return the error that ended the job, `otherwise` if it named none; in that case log its last lines."""
        if self._error is not None:
            return self._error
        for line in self._last:
            logger().error(line)
        return JobFailed(otherwise)

    def line(self, line: str) -> None:
        if PROGRESS in line:
            with contextlib.suppress(json.JSONDecodeError):
                self._progress(json.loads(line.partition(PROGRESS)[2]))
        elif ERROR in line:
            with contextlib.suppress(json.JSONDecodeError):
                content = json.loads(line.partition(ERROR)[2])
                self._error = (JobRefused if content["permanent"] else JobFailed)(content["message"])
        elif _CHATTER.search(line):
            logger().debug("%s", line)
        else:
            self._last = [*self._last[-29:], line]
            level = logging.WARNING if _WARNING.search(line) else logging.INFO
            logger().log(level, "%s", line, extra={"job": True})

    def _progress(self, content: JSON) -> None:
        done, note = f"{content['done']:,}/{content['total']:,}", content["note"]
        text = f"epoch {done}: {note}" if content["what"] == EPOCHS else f"{content['what']} {done} {note}"
        # Steps end with their epoch, which has a line of its own.
        always = content["what"] == EPOCHS or (content["done"] == content["total"] and not content["epoch"])
        due = time.monotonic() - self._last_info_at > _TELL_EVERY_S
        if due and not always:
            self._last_info_at = time.monotonic()
        text = text.rstrip(": ") + self._left(content["at"], content["fraction"])
        logger().log(logging.INFO if due or always else logging.DEBUG, "%s", text, extra={"progress": content})

    def _left(self, at: float, fraction: float) -> str:
        """Estimate the rest of the stage's time, by its job's clock: a log may be read long after it was written."""
        started, before = self._first = self._first or (at, fraction)
        if not before < fraction < 1:
            return ""
        left = datetime.timedelta(seconds=round(max(0.0, at - started) * (1 - fraction) / (fraction - before)))
        return f"; about {left} left"
