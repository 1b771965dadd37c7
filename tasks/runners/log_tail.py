"""Text of a cluster job's log as it grows, each part once."""

import asyncio
import contextlib
import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient


class LogTail:
    """Receiver of a job's log after its first `skip` characters, until the job or the connection ends.

    Another thread receives, so that a signal interrupts whoever waits for the text.
    """

    error: Exception | None = None
    """What ended the connection."""

    def __init__(self, client: "JobSubmissionClient", job: str, *, skip: int) -> None:
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._receiving = self._loop.create_task(self._receive(client, job, skip))
        threading.Thread(target=self._run, daemon=True).start()

    def text(self, limit_s: float) -> str | None:
        """Return the next text, empty if none comes within `limit_s`; None after the last."""
        with contextlib.suppress(queue.Empty):
            return self._texts.get(timeout=limit_s)
        return ""

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._receiving.cancel)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._receiving)
        self._loop.close()
        self._texts.put(None)

    async def _receive(self, client: "JobSubmissionClient", job: str, skip: int) -> None:
        try:
            async for text in client.tail_job_logs(job):  # from the log's beginning
                if new := text[skip:]:
                    self._texts.put(new)
                skip = max(0, skip - len(text))
        except Exception as error:  # the job's status says whether it goes on
            self.error = error
