"""Groups of fields: pydantic dataclasses whose errors name the field, what is allowed and the value in one line."""

import dataclasses
import functools
from typing import TypeVar, dataclass_transform

import pydantic
from pydantic import ConfigDict, Field, ValidationError

_Class = TypeVar("_Class", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field, dataclasses.field))
def group(cls: _Class) -> _Class:
    """Make a class a group of a recipe's fields: frozen, strictly typed, with a `ValueError` of one line."""
    config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid", use_attribute_docstrings=True)
    checked = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=config)(cls)
    check = checked.__init__

    @functools.wraps(check)
    def init(self: object, **fields: object) -> None:
        try:
            check(self, **fields)
        except ValidationError as error:
            raise ValueError(first_problem(error)) from None

    checked.__init__ = init  # type: ignore[method-assign]
    return checked  # type: ignore[return-value]


def first_problem(error: ValidationError) -> str:
    """Return one line about the first wrong field: its name without groups, what is allowed and the value."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    field, message = first["loc"][-1], first["msg"]
    if not message.startswith("Input should"):
        return f"{field}: {message}"
    return f"{field} {message.replace('Input should', 'must')}, got {first['input']!r}"
