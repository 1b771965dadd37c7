"""A cluster without nodes, for tests of what follows its jobs."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

from ray.job_submission import JobStatus

from tasks.jobs.events import ENDED

ADDRESS = "http://127.0.0.1:8265"
LOG = "one\ntwo\nthree\n" + ENDED + "\n"


class Cluster:
    """Jobs API of a cluster without nodes: a job succeeds once its log has been read to the end."""

    def __init__(self) -> None:
        self.jobs: dict[str, SimpleNamespace] = {}
        self.stopped: list[str] = []
        self.silent = 0
        """How many questions get no answer."""
        self.at_end: Callable[[], object] = lambda: None
        """What happens when a log has been read."""

    def list_jobs(self) -> list[SimpleNamespace]:
        if self.silent:
            self.silent -= 1
            raise ConnectionError("connection refused")
        return list(self.jobs.values())

    def submit_job(self, *, submission_id: str, metadata: dict[str, str], **_: Any) -> str:
        self.add(submission_id, metadata)
        return submission_id

    def add(self, name: str, metadata: dict[str, str]) -> None:
        self.jobs[name] = SimpleNamespace(submission_id=name, metadata=metadata, status=JobStatus.RUNNING)

    def stop_job(self, name: str) -> None:
        self.stopped.append(name)

    def get_job_logs(self, name: str) -> str:
        return LOG

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        for text in re.findall(r".{1,5}", LOG, re.DOTALL):
            yield text
            await asyncio.sleep(0)
        if name in self.jobs:
            self.jobs[name].status = JobStatus.SUCCEEDED
        self.at_end()
