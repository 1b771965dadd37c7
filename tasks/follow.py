"""Following a Ray job: from its growing log to log records, and to the error that ended it."""

import contextlib
import json
import logging
import re
import time
from pathlib import Path
from typing import Any

from storage.manifest import File
from storage.uri import URI, masked
from tasks.jobs.spec import ENDED, EPOCHS, ERROR, IMAGES, PROGRESS, RANK
from tasks.progress import ProgressArtifact
from tasks.stage import logger

_CHATTER = re.compile(
    r"core_worker\.cc:|Progress bars disabled|Dataset dataset_\S+ execution finished|Setting up process group|"
    r"^\s*$|Runtime env is setting up|Running entrypoint for job|\tINFO |\tWARNING .*(Token auth|Progress bars)"
    r"|Tip: |site-packages/\S+ \w*Warning: |^\s*(\(\w+ pid=.*\) +)?warnings\.warn|\[State Transition\]"
    r"|Attempting to start training worker"
    r"|find_unused_parameters=True was specified"
    r"|Started training worker|Checkpoint successfully created|Reporting training result|- \(node_id=|world_rank="
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_FROM_WORKER = re.compile(r"^\((?P<actor>\S+) (?P<process>pid=\d+(?:, ip=[\d.]+)?)\) ?")
"""What Ray writes before each line that a worker printed."""
_WARNING = re.compile(r"\bWARNING\b|Warning: |\bERROR\b|\bTraceback\b")

_LINES_PER_S = 10.0
"""How many of a job's lines go on, averaged; beyond that they are counted: Prefect keeps each in its database."""
_BURST = 200
"""How many may come at once."""
_TELL_EVERY_S = 10.0
"""How often progress is told as a line of its own; in between it is told at level DEBUG."""


class JobFailed(RuntimeError):
    """A Ray job ended without its result; the message says why. Trying again may help."""


class JobRefused(JobFailed):
    """A Ray job ended with an error that it would meet again."""

    permanent = True


class Follower:
    """Turns a growing job log into log records, in order: progress, what workers print, and at the end the error."""

    ended = False
    """Whether the job has said that its work is over, done or not."""

    def __init__(self, stage: str) -> None:
        self._artifact = ProgressArtifact(stage)
        self._seen = 0  # characters of the log, or bytes where it is a file
        self._error: dict[str, Any] | None = None
        self._last: list[str] = []
        self._ranks: dict[str, int] = {}
        self._epoch: int | None = None
        self._allowed, self._counted_at, self._left_out = float(_BURST), time.monotonic(), 0
        self._told = float("-inf")

    def read(self, log: str, *, ended: bool) -> None:
        """Handle the lines that are new in `log`; the last one only when it is whole."""
        end = len(log) if ended else log.rfind("\n") + 1
        new, self._seen = log[self._seen : end], max(end, self._seen)
        self._handle(new, ended=ended)

    def read_file(self, log: Path, *, ended: bool) -> None:
        """The same for a log that is a file, of which only what is new is read; one that is not there yet is empty."""
        with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
            file.seek(self._seen)
            new = file.read()
            whole = new if ended else new[: new.rfind(b"\n") + 1]
            self._seen += len(whole)
            self._handle(whole.decode(errors="replace"), ended=ended)

    def error(self, otherwise: str) -> JobFailed:
        """The error that ended the job, with its last lines logged."""
        if self._error is None:
            for line in self._last:
                logger().error(line)
            return JobFailed(otherwise)
        kind = JobRefused if self._error["permanent"] else JobFailed
        return kind(f"{self._error['type']}: {self._error['message']}")

    def _handle(self, new: str, *, ended: bool) -> None:
        for line in new.splitlines():
            self.line(_ANSI.sub("", line))
        if ended:
            self._tell_left_out()

    def line(self, line: str) -> None:
        """Handle one whole line."""
        if PROGRESS in line:
            content = _json_after(PROGRESS, line)
            if content:
                self._progress(content)
        elif RANK in line:
            worker, content = _FROM_WORKER.match(line), _json_after(RANK, line)
            if worker and content:
                self._ranks[worker["process"]] = content["rank"]
        elif IMAGES in line:
            content = _json_after(IMAGES, line)
            if content:
                _show_images(content)
        elif ERROR in line:
            self._error = _json_after(ERROR, line) or self._error
        elif ENDED in line:
            self.ended = True
        elif _CHATTER.search(line):
            logger().debug("%s", line)
        else:
            self._last = [*self._last[-29:], line]
            self._pass_on(self._named(line))

    def _progress(self, content: dict[str, Any]) -> None:
        self._epoch = content["epoch"] or self._epoch
        text = f"{content['what']}: {content['done']:,}/{content['total']:,} {content['note']}".rstrip()
        always = content["what"] == EPOCHS or content["done"] == content["total"]
        due = always or time.monotonic() - self._told > _TELL_EVERY_S
        if due:
            self._told = time.monotonic()
        logger().log(logging.INFO if due else logging.DEBUG, "%s", text, extra={"progress": content})
        self._artifact.update(content["fraction"], text)

    def _named(self, line: str) -> str:
        """`line` with the rank that printed it, and the epoch it was in, in place of a process number."""
        worker = _FROM_WORKER.match(line)
        if worker is None or worker["process"] not in self._ranks:
            return line
        epoch = f", epoch {self._epoch}" if self._epoch else ""
        return f"[rank {self._ranks[worker['process']]}{epoch}] {line[worker.end() :]}"

    def _pass_on(self, line: str) -> None:
        now = time.monotonic()
        self._allowed = min(_BURST, self._allowed + (now - self._counted_at) * _LINES_PER_S)
        self._counted_at = now
        if self._allowed < 1:
            self._left_out += 1
            return
        self._allowed -= 1
        self._tell_left_out()
        level = logging.WARNING if _WARNING.search(line) else logging.INFO
        logger().log(level, "%s", line, extra={"job": True})

    def _tell_left_out(self) -> None:
        if self._left_out:
            text = "%d lines were left out here; the job's log in Ray's dashboard has them"
            logger().warning(text, self._left_out, extra={"job": True})
            self._left_out = 0


def _show_images(content: dict[str, Any]) -> None:
    """Show the first training images on the page of the running flow; what goes wrong never fails the training."""
    from prefect.context import FlowRunContext

    if FlowRunContext.get() is None:
        return
    try:
        from tasks.artifacts import publish_training_images

        publish_training_images(URI(content["uri"]), File.model_validate(content["file"]))
    except Exception as error:  # bad bytes, or a storage or server that does not answer now
        logger().warning("the first training images are not shown: %s", masked(str(error)))


def _json_after(marker: str, line: str) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(line.partition(marker)[2])
    except ValueError:
        return None
    return content
