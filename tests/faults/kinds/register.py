"""The kinds of fault by name."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tests.faults.case import Scenario

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    scenario: Scenario
    is_quick: bool
    """Whether it belongs to the short form."""


KINDS: dict[str, Kind] = {}


def kind(name: str, *, quick: bool = False, **arguments: Any) -> Callable[[_Function], _Function]:
    """Register a scenario under a name, with the arguments that this kind gives it; one may stand under several."""

    def add(scenario: _Function) -> _Function:
        assert name not in KINDS, name
        KINDS[name] = Kind(partial(scenario, **arguments), quick)
        return scenario

    return add
