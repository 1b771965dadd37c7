"""What each process did and when: a line before each call and one after it, in a file of its own, read as operations.

A line is with the kernel before the call that it announces: a process that is killed leaves a call without an end.
"""

import contextlib
import dataclasses
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.faults.history import Event, History


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """One call; times are of the clock that all processes of this machine share."""

    worker: int
    life: int
    """How often the worker had been started."""
    number: int
    """Counted over all lives."""
    does: str
    on: str
    """The lease, the dataset or the championship."""
    about: dict[str, Any]
    """With what it was called."""
    started: float
    ended: float = math.inf
    """Infinite when the process ended first: whether it took effect is not known."""
    result: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str | None = None
    """Class of what it raised."""
    said: str = ""

    @property
    def name(self) -> str:
        """Unlike any other's."""
        return name(self.worker, self.number)

    @property
    def is_known(self) -> bool:
        """Whether it returned, rather than raised or never ended."""
        return self.ended < math.inf and self.error is None

    def told(self, *, since: float) -> str:
        """One line."""
        end = "?" if self.ended == math.inf else f"{self.ended - since:.4f}"
        given = " ".join(f"{key}={value}" for key, value in self.about.items())
        came = " ".join(f"{key}={value}" for key, value in self.result.items())
        raised = f" raised {self.error}: {self.said}" if self.error else ""
        who = f"worker {self.worker} (life {self.life}) {self.name}"
        return f"{self.started - since:9.4f} to {end:>9}  {who}: {self.does} {self.on} {given} -> {came}{raised}"


@dataclasses.dataclass(kw_only=True)
class Life:
    """When one process was about to end, and when it surely had ended."""

    doomed: float = math.inf
    gone: float = math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recording:
    """All operations of all processes in the order in which they began, and the ends of the processes."""

    operations: list[Operation]
    lives: dict[tuple[int, int], Life]
    struck: Mapping[str, int]
    """How often a process was stalled or killed, and each fault of S3."""


class Abandoned(RuntimeError):
    """A call raised what it may not raise; it stands in the record, and the step is given up."""


class Call:
    """A call that has begun."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.result: dict[str, Any] = {}


class Recorder:
    """One process's record; the next life of the same worker goes on where it ends."""

    def __init__(self, folder: Path, *, worker: int, life: int) -> None:
        self.worker, self.life = worker, life
        self._history = History(_path(folder, worker))
        past = [event["point"] for event in self._history.events()]
        self.steps_begun = past.count("step")
        self._numbers = itertools.count(past.count("start"))
        self._counting = threading.Lock()

    def note(self, point: str) -> None:
        """Add that the process is at `point`."""
        self._history.add(point=point, clock=time.monotonic(), life=self.life)

    @contextlib.contextmanager
    def call(self, does: str, on: str, *, may_raise: type[Exception] | None = None, **about: Any) -> Iterator[Call]:
        """Record the call that the block makes; raises `Abandoned` for what is not `may_raise`."""
        with self._counting:
            number = next(self._numbers)
            start = {"number": number, "does": does, "on": on, "about": about, "life": self.life}
            self._history.add(point="start", clock=time.monotonic(), **start)
        call = Call(name(self.worker, number))
        raised: Exception | None = None
        try:
            yield call
        except Exception as error:
            raised = error
        ended = time.monotonic()
        end = {"error": type(raised).__name__, "said": str(raised)[:300]} if raised else {}
        self._history.add(point="end", clock=ended, number=number, result=call.result, **end)
        if raised and may_raise and isinstance(raised, may_raise):
            raise raised
        if raised:
            raise Abandoned(str(raised)) from raised


def name(worker: int, number: int) -> str:
    """What an operation is called, and calls itself in what it writes."""
    return f"{worker}-{number}"


def read(folder: Path, *, workers: int) -> Recording:
    """What the workers and the process that controls them wrote."""
    operations: list[Operation] = []
    lives: dict[tuple[int, int], Life] = {}
    for worker in range(workers):
        begun: dict[int, Operation] = {}
        for event in History(_path(folder, worker)).events():
            _take_in(event, worker, begun, lives)
        operations.extend(begun.values())
    struck: Counter[str] = Counter()
    for event in control_record(folder).events():
        struck["killed" if event["point"] == "doomed" else event["point"]] += 1
        if event["point"] in ("doomed", "gone"):
            life = lives.setdefault((event["worker"], event["life"]), Life())
            setattr(life, event["point"], min(event["clock"], getattr(life, event["point"])))
    del struck["gone"]
    ordered = sorted(operations, key=lambda operation: operation.started)
    return Recording(operations=ordered, lives=lives, struck=struck)


def control_record(folder: Path) -> History:
    """When which worker was about to be killed and when one was found to have ended; stalls and faults of S3."""
    return History(folder / "control.jsonl")


def _take_in(event: Event, worker: int, begun: dict[int, Operation], lives: dict[tuple[int, int], Life]) -> None:
    if event["point"] == "start":
        fields = {key: event[key] for key in ("number", "does", "on", "about", "life")}
        begun[event["number"]] = Operation(worker=worker, started=event["clock"], **fields)
    elif event["point"] == "end":
        fields = {key: event[key] for key in ("result", "error", "said") if key in event}
        begun[event["number"]] = dataclasses.replace(begun[event["number"]], ended=event["clock"], **fields)
    elif event["point"] == "done":
        lives.setdefault((worker, event["life"]), Life()).doomed = event["clock"]


def _path(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker}.jsonl"
