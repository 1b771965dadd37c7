"""The kinds of fault by name."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tests.faults.case import Case

Scenario = Callable[[Case], dict[str, Any] | None]
"""Injects the fault and returns the result of the run that survived; None if no run is expected to succeed."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    name: str
    scenario: Scenario
    is_quick: bool
    """Whether it belongs to the short form."""


KINDS: dict[str, Kind] = {}


def kind(name: str, *, quick: bool = False) -> Callable[[Scenario], Scenario]:
    """Register a scenario under its name."""

    def add(scenario: Scenario) -> Scenario:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, scenario, quick)
        return scenario

    return add
