"""The history of a suite: one JSON line for each failpoint that a process reached, each fault and each run's end."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_SHELVES = (
    *("/downloads/", "/datasets/", "/checkpoints/", "/predictions/", "/evaluations/", "/registry/", "/reports/"),
    "/epoch-",
)


class History:
    """A file that all processes of all runs append to; the suite reads what came since it last began a case."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()
        self._from = 0

    def begin(self, **case: Any) -> None:
        """Begin a case: only what is added from now on is read."""
        self._from = self.path.stat().st_size
        self.add(point="case", **case)

    def add(self, **event: Any) -> None:
        """Add what the suite itself saw or did."""
        with self.path.open("ab", buffering=0) as history:
            history.write(json.dumps({"s": time.time(), "at": "", **event}).encode() + b"\n")

    def events(self) -> Iterator[Event]:
        """What happened since the case began, in the order in which it was written."""
        with self.path.open("rb") as history:
            history.seek(self._from)
            for line in history.read().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def has(self, matches: Callable[[Event], bool]) -> bool:
        """Whether such an event is there already."""
        return any(map(matches, self.events()))

    def recovery_s(self) -> float | None:
        """Seconds from the first fault until a process that is younger did work again, none if none did."""
        events = list(self.events())
        struck_s = next((event["s"] for event in events if is_struck(event)), None)
        if struck_s is None:
            return None
        again = (event["s"] for event in events if event.get("started", 0) > struck_s and is_work(event))
        return next((s - struck_s for s in again), None)


def is_struck(event: Event) -> bool:
    """Whether `event` is a fault."""
    return "struck" in event


def is_work(event: Event) -> bool:
    """Whether `event` brings a result nearer: a training step, or a file; not a probe, a marker or a job's spec."""
    return step(event) or (event["point"] == "written" and any(shelf in event["at"] for shelf in _SHELVES))


def step(event: Event) -> bool:
    """Whether `event` is a training step."""
    return bool(event["point"] == "step")


def step_of(epoch: int) -> Callable[[Event], bool]:
    """Whether an event is a training step of this epoch."""
    return lambda event: step(event) and event["at"] == f"epoch {epoch}"


def written(part: str) -> Callable[[Event], bool]:
    """Whether an event is the writing of a file whose path holds `part`."""
    return lambda event: event["point"] == "written" and part in event["at"]


def checkpoint_of(epoch: int) -> Callable[[Event], bool]:
    """Whether an event makes the checkpoint of this epoch whole."""
    return written(f"/epoch-{epoch:04d}/checkpoint.json")
