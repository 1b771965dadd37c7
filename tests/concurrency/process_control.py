"""Start the workers, stop and continue them, kill and restart them, and disturb their requests to S3."""

import contextlib
import dataclasses
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Iterator, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from storage.uri import Root
from tests.concurrency import plan, record
from tests.concurrency.record import Recording
from tests.concurrency.worker import WorkerSpec, work
from tests.faults.proxy import serve
from tests.s3 import Server


def run_workers(root: Root, *, seed: int, operations: int, folder: Path, server: Server | None = None) -> Recording:
    """Let the workers carry out `operations` steps together, and say what they did.

    Args:
        root: Empty.
        seed: See `plan`.
        operations: Steps of all workers; most make two or three calls.
        folder: Where the records go.
        server: Where `root` lies, if it is on S3.
    """
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")  # a worker that was killed is back in no time
    context.set_forkserver_preload([work.__module__, "s3fs"])  # for all runs of this process
    ttl_s = plan.TTL_S["s3" if server else "disk"]

    def handle(worker: int, endpoint: Mapping[str, str], interruptions: Iterator[plan.Interruption]) -> _WorkerHandle:
        spec = WorkerSpec(
            root=str(root),
            folder=folder,
            seed=seed,
            worker=worker,
            steps=operations // plan.WORKERS,
            ttl_s=ttl_s,
            environment={**server.environment(), **endpoint} if server else {},
        )
        return _WorkerHandle(context, spec, interruptions)

    with _proxies(server, seed=seed, folder=folder) as endpoints:
        workers = enumerate(endpoints)
        _see_through([handle(each, at, plan.interruptions(seed, each, ttl_s=ttl_s)) for each, at in workers])
    _see_through([handle(plan.WORKERS, {}, iter(()))])
    return record.read(folder, workers=plan.WORKERS + 1)


@contextlib.contextmanager
def _proxies(server: Server | None, *, seed: int, folder: Path) -> Iterator[list[dict[str, str]]]:
    """For each worker the variable that sends it to a proxy of its own; the injected faults are recorded in the end."""
    if not server:
        yield [{} for _ in range(plan.WORKERS)]
        return
    proxies = [plan.SeededProxy(server.endpoint, seed=seed, worker=worker) for worker in range(plan.WORKERS)]
    with contextlib.ExitStack() as stack:
        yield [{"AWS_ENDPOINT_URL": stack.enter_context(serve(server.endpoint, proxy)).endpoint} for proxy in proxies]
    for fault, _, _ in itertools.chain.from_iterable(proxy.injected for proxy in proxies):
        record.control_record(folder).add(point=fault)


class _WorkerHandle:
    """One worker across restarts, with its next interruption."""

    def __init__(
        self,
        context: multiprocessing.context.ForkServerContext,
        spec: WorkerSpec,
        interruptions: Iterator[plan.Interruption],
    ) -> None:
        self._context, self._spec, self._interruptions = context, spec, interruptions
        self._lives = itertools.count()
        self._next: plan.Interruption | None = None
        self._is_stopped = False
        self.due = float("inf")

    def start(self) -> None:
        """Begin the next life."""
        self._life = next(self._lives)
        spec = dataclasses.replace(self._spec, life=self._life)
        self.process: ForkServerProcess = self._context.Process(target=work, args=(spec,), daemon=True)
        self.process.start()
        self._draw()

    def has_ended(self) -> bool:
        """Whether its work is done."""
        if self.process.is_alive():
            return False
        assert self.process.exitcode == 0, f"worker {self._spec.worker} ended with {self.process.exitcode}"
        self._note("gone")
        return True

    def interrupt(self) -> None:
        """What is due now."""
        assert self._next and self.process.pid
        if self._is_stopped:
            self.let_go()
            self._draw()
        elif self._next.stall_s is None:
            self._note("doomed")
            self.process.kill()
            self.process.join()
            self._note("gone")
            if self.process.exitcode == 0:  # it was done a moment before
                self.due = float("inf")
            else:
                self.start()
        else:
            _send(self.process.pid, signal.SIGSTOP)
            self._note("stalled")
            self._is_stopped = True
            self.due = time.monotonic() + self._next.stall_s

    def let_go(self) -> None:
        """Continue it if it is stopped."""
        if self._is_stopped and self.process.pid:
            _send(self.process.pid, signal.SIGCONT)
        self._is_stopped = False

    def _draw(self) -> None:
        self._next = next(self._interruptions, None)
        self.due = time.monotonic() + self._next.after_s if self._next else float("inf")

    def _note(self, point: str) -> None:
        about = {"worker": self._spec.worker, "life": self._life}
        record.control_record(self._spec.folder).add(point=point, clock=time.monotonic(), **about)


def _see_through(handles: list[_WorkerHandle]) -> None:
    """Start all workers and interrupt them as planned until all are done."""
    try:
        for handle in handles:
            handle.start()
        working = list(handles)
        while working:
            until = min(handle.due for handle in working)
            wait_s = None if until == float("inf") else max(0.0, until - time.monotonic())
            multiprocessing.connection.wait([handle.process.sentinel for handle in working], timeout=wait_s)
            working = [handle for handle in working if not handle.has_ended()]
            for handle in working:
                if handle.due <= time.monotonic():
                    handle.interrupt()
    finally:
        for handle in handles:
            handle.process.kill()


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
