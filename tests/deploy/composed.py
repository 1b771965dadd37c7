"""deploy/compose.yaml as Docker Compose reads it: variables replaced, commands and environments by service."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from tests.runs import CHECKOUT

DEPLOY = CHECKOUT / "deploy"
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Z0-9_]+)(?::(?P<kind>[-?])(?P<word>[^}]*))?\}")


class Missing(ValueError):
    """A variable that has to be set is not."""


def read() -> dict[str, Any]:
    """The file, with its variables as they stand in it."""
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return content


def services(env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The services with the variables of `env` in them; raises `Missing` if one that has to be set is not."""
    found: dict[str, dict[str, Any]] = _replaced(read()["services"], env)
    for service in found.values():
        variables = service.get("environment", {})
        # A variable without a value is that of the same name in `env`, and unset if there is none.
        named = {name: env.get(name) if value is None else str(value) for name, value in variables.items()}
        service["environment"] = {name: value for name, value in named.items() if value is not None}
    return found


def example(*, empty: str = "") -> dict[str, str]:
    """The variables of .env.example; those without a value get `empty`."""
    lines = (DEPLOY / ".env.example").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value or empty for name, _, value in pairs}


def variables() -> set[str]:
    """The names of all variables that the file reads."""
    text = (DEPLOY / "compose.yaml").read_text()
    declared = [one.get("environment", {}) for one in read()["services"].values()]
    unset = [name for one in declared for name, value in one.items() if value is None]
    return {found["name"] for found in _VARIABLE.finditer(text)} | set(unset)


def _replaced(value: Any, env: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _replaced(one, env) for name, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, env) for one in value]
    return _VARIABLE.sub(lambda found: _value(found, env), value) if isinstance(value, str) else value


def _value(found: re.Match[str], env: Mapping[str, str]) -> str:
    value = env.get(found["name"], "")
    if value or not found["kind"]:
        return value
    if found["kind"] == "?":
        raise Missing(found["name"])
    return found["word"]
