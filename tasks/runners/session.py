"""Choice of a run's runner: a local Ray, the cluster that RAY_ADDRESS names, or this process."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from storage import manifest
from tasks.jobs.spec import JobSpec
from tasks.orchestration.stage import begin_again, logger
from tasks.resources import capacity
from tasks.resources.needs import Workers
from tasks.runners.cluster_runner import ClusterRunner
from tasks.runners.local_runner import LocalRunner
from tasks.runners.runner import InProcessRunner, Runner

_POLL_S = 0.5
"""Seconds between two attempts to get the machine's lock."""
_WAITING = "waiting: another run is computing on this machine; `fuser %s` shows its process"
_early: ContextVar[LocalRunner | None] = ContextVar("early", default=None)
"""The local Ray that `starting` started, for all sessions inside it."""


@contextlib.contextmanager
def starting(*, wanted: bool) -> Iterator[None]:
    """Start a local Ray in advance, if it is `wanted`, for the sessions inside the context."""
    jobs = LocalRunner(wanted=wanted and not capacity.cluster_address())
    token = _early.set(jobs)
    try:
        yield
    finally:
        _early.reset(token)
        jobs.end()


@contextlib.contextmanager
def session(*, wanted: bool, workers: Workers) -> Iterator[Runner]:
    """Yield the runner of one run; start Ray at once if `wanted` (there will be a job), else when a job is submitted.

    With `workers` 0 everything runs in this process, without Ray.
    """
    address = capacity.cluster_address()
    if address and workers != 0:
        yield ClusterRunner(address)
        return
    with contextlib.ExitStack() as stack:
        if workers == 0:
            runner: Runner = InProcessRunner()
        elif early := _early.get():
            runner = early
        else:
            runner = local = LocalRunner(wanted=wanted)
            stack.callback(local.end)
        yield LockingRunner(runner, stack)


class LockingRunner:
    """Runner on this machine: its first job waits for the machine's lock, which the run then keeps.

    The lock only saves time: two runs of one user that compute at once are slow and harm nothing. The kernel releases
    it, however the process ends.
    """

    def __init__(self, runner: Runner, locks: contextlib.ExitStack) -> None:
        self.runner = runner
        self._locks = locks
        self._has_lock = False

    def run(self, spec: JobSpec[Any]) -> None:
        """Run the job as `Runner` says, unless another run has made its result during the wait for the lock."""
        if not self._has_lock:
            self._has_lock = True
            self._lock()
            if manifest.is_committed(spec.stage.target):
                return
        self.runner.run(spec)

    def _lock(self) -> None:
        path = Path(tempfile.gettempdir(), f"data-to-model-{os.geteuid()}.lock")
        lock = FileLock(path, thread_local=False)
        try:
            try:
                self._locks.enter_context(lock.acquire(blocking=False))
            except Timeout:
                logger().info(_WAITING, path)
                self._locks.enter_context(lock.acquire(poll_interval=_POLL_S))
        except OSError as error:
            logger().warning("runs on this machine do not take turns: %s", error)
        begin_again()
