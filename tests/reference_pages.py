"""Pages of `docs/reference` that follow from the code: `python -m tests.reference_pages` writes them.

A test compares them with what this module renders.
"""

import inspect
import io
import json
import re
import textwrap
from contextlib import redirect_stdout
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from prefect import Flow
from pydantic.fields import FieldInfo

import data_to_model
from flows import pipeline
from flows import predict as prediction
from flows.__main__ import main
from flows.cli import app
from tasks.learning import inference, recipes, sources

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
_WIDTH = 120
_REMADE = "<!-- written by `python -m tests.reference_pages` -->\n"
_OBJECTS: dict[ModuleType, list[str]] = {
    recipes: [
        *("own", "Recipe", "Data", "Split", "Training", "Gate", "Resources", "AdamW", "SGD", "Own", "PixelAugment"),
        *("FileAugment", "Random", "Pretrained", "Weights", "Champion"),
    ],
    sources: ["Source", "SourceFile", "Split"],
    inference: ["load", "Model"],
    data_to_model: ["Run", "Prediction", "Audit", "Diff", "champion"],
}
"""What code of a user imports, by module."""


def render() -> dict[str, str]:
    """Return the text of each page by its file's name."""
    return {"commands.md": _commands(), "deployments.md": _deployments(), "python.md": _python()}


def _commands() -> str:
    group: Any = typer.main.get_command(app.app)
    lines = ["# Options of every command", _REMADE, "`data-to-model --version` prints the version.", ""]
    for name in group.commands:
        lines += [f"## {name}", "", "```console", f"$ data-to-model {name} --help", _help(name), "```", ""]
    return "\n".join(lines)


def _help(name: str) -> str:
    written = io.StringIO()
    with redirect_stdout(written):
        main([name, "--help"])
    return "\n".join(line.rstrip() for line in written.getvalue().strip().splitlines())


def _deployments() -> str:
    lines = ["# Parameters of deployments", _REMADE]
    lines += ["Give them by `--param name=value`, in the form of the UI, or under `parameters` in `prefect.yaml`.", ""]
    flows: dict[str, Flow[..., Any]] = {
        "`mnist/train`, `images/train` and others that train": pipeline.mnist,
        "`predict/batch`": prediction.predict,
    }
    for heading, flow in flows.items():
        lines += [f"## {heading}", ""]
        for name, schema in flow.parameters.properties.items():
            default = "required" if name in flow.parameters.required else _default(schema.get("default"))
            description = " ".join(schema.get("description", "").split())
            lines += _item(f"`{name}` ({default}): {description}")
        lines += [""]
    return "\n".join(lines)


def _default(value: Any) -> str:
    return "default: empty" if value is None else f"default: `{json.dumps(value)}`".replace('"', "")


def _python() -> str:
    lines = [
        "# Python",
        _REMADE,
        "What code of your own imports ([how](../your-recipe.md)). Also: [fields](../cli.md#recipe-fields).",
        "",
    ]
    for module, names in _OBJECTS.items():
        lines += [f"## {module.__name__}", ""]
        for name in names:
            thing = getattr(module, name)
            lines += [f"### {name}", "", *_documentation(thing), ""]
            for method_name, method in _methods(thing):
                lines += [f"#### {name}.{method_name}", "", *_documentation(method), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _methods(thing: Any) -> list[tuple[str, Any]]:
    if not inspect.isclass(thing) or is_dataclass(thing):
        return []
    own = [(name, value) for name, value in vars(thing).items() if inspect.isfunction(value) and value.__doc__]
    return [(name, value) for name, value in own if not name.startswith("_") or name == "__call__"]


def _documentation(thing: Any) -> list[str]:
    text = (inspect.getdoc(thing) or "").splitlines()
    if is_dataclass(thing):
        return [*text, "", "```python", *_constructor(thing), "```"]
    return ["```text", *text, "```"] if len(text) > 1 else text


def _constructor(thing: Any) -> list[str]:
    lines = [f"{thing.__name__}("]
    for field in fields(thing):
        if field.name in ("kind", "origin"):
            continue
        default: Any = field.default_factory() if field.default_factory is not MISSING else field.default
        default = (MISSING if default.is_required() else default.default) if isinstance(default, FieldInfo) else default
        shown = f"{type(default).__name__}()" if is_dataclass(default) else repr(default)  # it has its own section
        lines.append(f"    {field.name}," if default is MISSING else f"    {field.name}={shown},")
    return [f"{thing.__name__}()"] if len(lines) == 1 else [*lines, ")"]


def _item(text: str) -> list[str]:
    return textwrap.wrap(f"- {text}", _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    for name, text in render().items():
        (FOLDER / name).write_text(text)
