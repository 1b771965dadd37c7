"""What a seed decides: the calls of each worker, what befalls it, and which of its requests to S3 get a fault.

How the workers' calls interleave is the kernel's: the same seed gives each process the same calls and the same faults
in the same order, and not the same history. So a seed that failed once is run again with `--repeat`.
"""

import dataclasses
import random
from collections.abc import Iterator
from typing import Literal

from tests.faults.proxy import Fault, Proxy

Does = Literal["lease", "late", "hold", "holder", "commit", "read", "decide", "history", "use", "collect", "audit"]

WORKERS = 4
"""How many processes contend."""
TTL_S = {"disk": 0.25, "s3": 1.0}
"""How long a lease lasts: short, so that stalls outlast it, and some ten calls long all the same."""
PER_PART = 400
"""After how many steps of its own a worker goes on to the next shelf and championship: none grows without bound."""

_WEIGHTS: dict[Does, int] = {
    "lease": 24,
    "late": 6,
    "hold": 3,
    "holder": 10,
    "commit": 18,
    "read": 14,
    "decide": 18,
    "history": 8,
    "use": 8,
    "collect": 3,
}
_TARGETS = (6, 2, 1)
"""How often the first of several leases or championships is meant, and the others: the first is busy."""
_KILLED = 0.12
"""Of all interruptions; the others are stalls."""
_LONG = 0.12
"""Of all stalls: they outlast a lease."""
_SPOILT = 0.02
"""Of all requests to S3."""
_FAULTS: dict[str, tuple[Fault, ...]] = {
    "GET": ("500", "503", "reset", "truncated", "lost"),
    "PUT": ("500", "503", "reset", "lost", "lost", "lost"),
    "HEAD": ("503", "reset"),
    "POST": ("500", "reset", "lost"),
    "DELETE": ("500", "reset", "lost"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that a worker does: a few calls."""

    does: Does
    target: int = 0
    """Which of several leases or championships, or how far back to read."""
    times: int = 0
    """How often a lease is renewed."""
    pause_s: float = 0.0
    """How long the worker rests between its calls."""
    tidy: bool = True
    """Whether a lease is released rather than left to expire."""
    ttls: int = 1
    """How much longer than `TTL_S` a lease lasts: one of a killed process is free all the same."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interruption:
    """One interruption of a worker: a kill or a stall."""

    after_s: float
    """Seconds since the one before."""
    stall_s: float | None
    """For how long it is stopped; none: it is killed."""


def steps(seed: int, worker: int, count: int) -> list[Step]:
    """All that one worker does."""
    chance = random.Random(f"{seed} steps {worker}")
    drawn = chance.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()), k=count)
    return [_step(does, chance) for does in drawn]


def interruptions(seed: int, worker: int, *, ttl_s: float) -> Iterator[Interruption]:
    """What befalls one worker, for as long as it works."""
    chance = random.Random(f"{seed} strikes {worker}")
    while True:
        after_s = chance.expovariate(2 / ttl_s)
        if chance.random() < _KILLED:
            yield Interruption(after_s=after_s, stall_s=None)
        elif chance.random() < _LONG:
            yield Interruption(after_s=after_s, stall_s=ttl_s * chance.uniform(1.0, 2.0))
        else:
            yield Interruption(after_s=after_s, stall_s=chance.uniform(0.01, 0.3))


class SeededProxy(Proxy):
    """Proxy of one worker that injects faults into a share of its requests, chosen by the seed."""

    def __init__(self, server: str, *, seed: int, worker: int) -> None:
        super().__init__(server)
        self._chance = random.Random(f"{seed} requests {worker}")

    def fault_of(self, method: str, path: str) -> Fault | None:
        """What the request that just came in gets."""
        with self._taking:
            self.requests[method] += 1
            is_spoilt, which = self._chance.random() < _SPOILT, self._chance.random()
            if not is_spoilt:
                return None
            faults = _FAULTS[method]
            fault = faults[int(which * len(faults))]
            self.injected.append((fault, method, path))
            return fault


def _step(does: Does, chance: random.Random) -> Step:
    pause_s = chance.uniform(0.05, 0.3) if does == "hold" else chance.choice((0.0, 0.0, 0.0, 0.005, 0.02))
    tidy = chance.random() < 0.85
    return Step(
        does=does,
        target=chance.choices(range(len(_TARGETS)), weights=_TARGETS)[0],
        times=chance.choice((0, 0, 0, 0, 1, 3)),
        pause_s=pause_s,
        tidy=tidy,
        ttls=6 if tidy and chance.random() < 0.4 else 1,
    )
