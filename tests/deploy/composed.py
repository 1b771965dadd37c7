"""deploy/compose.yaml and deploy/Dockerfile as Docker reads them: services with their variables, the image's folder."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.runs import CHECKOUT

DEPLOY = CHECKOUT / "deploy"
_COMPOSE = (DEPLOY / "compose.yaml").read_text()
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Z0-9_]+)(?::(?P<kind>[-?])(?P<word>[^}]*))?\}")


class Missing(ValueError):
    """A variable that has to be set is not."""


def services(env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The services with the variables of `env` in them; raises `Missing` if one that has to be set is not."""

    def value(match: re.Match[str]) -> str:
        if match["kind"] == "?" and not env.get(match["name"]):
            raise Missing(match["name"])
        return env.get(match["name"]) or match["word"] or ""

    declared: dict[str, dict[str, Any]] = yaml.safe_load(_VARIABLE.sub(value, _COMPOSE))["services"]
    for service in declared.values():
        # A variable without a value is that of the same name in `env`, and unset if there is none.
        values = {name: env.get(name) if value is None else value for name, value in service["environment"].items()}
        service["environment"] = {name: str(value) for name, value in values.items() if value is not None}
    return declared


def example(*, empty: str = "") -> dict[str, str]:
    """The variables of .env.example; those without a value get `empty`."""
    lines = (DEPLOY / ".env.example").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value or empty for name, _, value in pairs}


def variables() -> set[str]:
    """The names of all variables that compose.yaml reads."""
    declared = [service["environment"] for service in yaml.safe_load(_COMPOSE)["services"].values()]
    unset = {name for one in declared for name, value in one.items() if value is None}
    return {match["name"] for match in _VARIABLE.finditer(_COMPOSE)} | unset


def _of_image(instruction: str) -> list[str]:
    """The words of each such instruction in the last stage of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.*)", text.rpartition("\nFROM ")[2], re.MULTILINE)


def image_variables() -> dict[str, str]:
    """The variables that the image sets."""
    return dict(pair for words in _of_image("ENV") for pair in re.findall(r"([A-Z_]+)=(\S+)", words))


def assemble_image(folder: Path) -> Path:
    """Copy to `folder` what the image copies from the checkout."""
    folder.mkdir(parents=True)
    for *sources, destination in (words.split() for words in _of_image("COPY") if not words.startswith("--from=")):
        for source in sources:
            origin, target = CHECKOUT / source, folder / destination
            if origin.is_dir():
                shutil.copytree(origin, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(origin, target)
    return folder
