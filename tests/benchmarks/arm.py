"""A process that does one piece of work at each request, so that two of them can alternate."""

import contextlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

from tasks.runners.child import Child
from tests.runs import CHECKOUT, processes_with

_WHERE = "PIPELINE_BENCHMARK"
_PASSES_S = 1.0
"""How long batches are counted: one pass over the sample takes five milliseconds."""
_SETTLE_S = 2.0
"""Seconds for which a resumed Ray catches up before anything is measured."""
Work = Callable[[], dict[str, float]]
"""Does one piece of work and says what it measured."""


class Arm:
    """Client side of an arm: sends requests to a process, or to rank 0 of several processes."""

    def __init__(self, listener: Listener, child: Child, mark: str) -> None:
        self._listener, self._child = listener, child
        self.mark = mark
        """What every process of it has in its environment, `NAME=value`."""

    @cached_property
    def _connection(self) -> Connection:
        """To the process, once it is ready."""
        while not wait([self._listener._listener._socket], 1):  # type: ignore[attr-defined]
            self._check_runs()
        return self._listener.accept()

    def ask(self, work: str) -> dict[str, float]:
        """Have one piece of work done; what the arm measured."""
        self._connection.send(work)
        while not self._connection.poll(1):
            self._check_runs()
        try:
            answer: dict[str, float] = self._connection.recv()
        except EOFError:
            raise RuntimeError(f"an arm ended:\n{self._child.output()[-4000:]}") from None
        return answer

    def _check_runs(self) -> None:
        if not self._child.running:
            raise RuntimeError(f"an arm ended:\n{self._child.output()[-4000:]}")


def alone(work: Callable[[], float], *, beside: str) -> Callable[[], float]:
    """`work` while every process with the variable `beside`, `NAME=value`, stands still, as if it were not there.

    Otherwise the hand-written script would lose time to our Ray, which is never quite idle.
    """

    def undisturbed() -> float:
        pids = [pid for pid, command in processes_with(beside).items() if "child.py" not in command]
        assert pids, f"no process has {beside}"
        try:
            _signal(pids, signal.SIGSTOP)
            return work()
        finally:
            _signal(pids, signal.SIGCONT)
            time.sleep(_SETTLE_S)

    return undisturbed


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # some last for a second
            os.kill(pid, number)


@contextlib.contextmanager
def started(module: str, *arguments: str, launcher: Sequence[str] = (), threads: int | None = None) -> Iterator[Arm]:
    """The arm `python -m tests.benchmarks.<module>` for as long as the context lasts; it need not be ready yet.

    `launcher` takes the place of `python`; `threads` is how many OpenMP uses in each process.
    """
    key = secrets.token_bytes(16)
    with Listener(("127.0.0.1", 0), authkey=key) as listener:
        where = json.dumps([listener.address[1], key.hex()])
        env = os.environ | {_WHERE: where, "PYTHONPATH": str(CHECKOUT)}
        if threads:
            env["OMP_NUM_THREADS"] = str(threads)
        command = [*(launcher or [sys.executable]), "-m", f"tests.benchmarks.{module}", *arguments]
        child = Child(command, env=env)
        try:
            yield Arm(listener, child, f"{_WHERE}={where}")
        finally:
            child.end()


def serve(can: Mapping[str, Work]) -> None:
    """Server side of an arm, on every rank: carry out requests until the connection closes."""
    rank, world_size = _rank_and_world_size()
    connection = None
    if rank == 0:
        port, key = json.loads(os.environ[_WHERE])
        connection = Client(("127.0.0.1", port), authkey=bytes.fromhex(key))
    while True:
        requests: list[str | None] = [None]
        if connection is not None:
            with contextlib.suppress(EOFError, OSError):
                requests[0] = connection.recv()
        if world_size > 1:
            import torch.distributed as dist

            dist.broadcast_object_list(requests, src=0)
        if requests[0] is None:
            return
        answer = can[requests[0]]()
        if connection is not None:
            connection.send(answer)


def _rank_and_world_size() -> tuple[int, int]:
    if "torch" not in sys.modules:
        return 0, 1
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def passed(batches: Callable[[], Iterable[tuple[Any, Any]]]) -> dict[str, float]:
    """Seconds and rows of passes over `batches()`, images and labels, as many as a second has room for."""
    started, rows = time.perf_counter(), 0
    while (seconds := time.perf_counter() - started) < _PASSES_S:
        rows += sum(len(labels) for _, labels in batches())
    return {"seconds": seconds, "rows": float(rows)}
