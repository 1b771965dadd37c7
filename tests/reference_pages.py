"""Pages of `docs/reference` that follow from the code: `python -m tests.reference_pages` writes them.

A test compares them with what this module renders.
"""

import collections
import inspect
import itertools
import re
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from pydantic.fields import FieldInfo

import data_to_model
from flows.cli import app
from storage import exits
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


_DESCRIPTIONS = {
    "commands.md": "Every command and option of data-to-model, exit codes, how to name a result",
    "recipes.md": "Every field of a recipe with type, default and meaning; the values of each built-in recipe; --set",
    "python.md": "Recipe, Data, Training, Source, load, Run and other classes and functions to import",
}
"""What searches show of a page."""
_RECIPES = """
`--set field=value` changes a field of the recipe; a deployment has the parameter `settings`. You may give a field with
its group (`gate.minimum=0.5`), and write `-` for `_`. Values are text, numbers, or `true`, `false`, `on` and `off`.
`data-to-model recipes NAME` prints the fields of one recipe, also of [your own](../your-recipe.md).
[Which recipe?](../choose-a-model.md#which-recipe)

The groups say what a field decides. A field that decides a result is part of the result's
[fingerprint](../concepts.md): with another value the result has another name.
"""
_INTRODUCTION = """
`make install` installs one command, `data-to-model`. Activate the environment first: `. .venv/bin/activate`. Each
command has `--help`; `data-to-model --version` prints the version. In the repository, `python flows/pipeline.py` is
`data-to-model run`, `make up` is `data-to-model up`, and `make run ARGS="--set epochs=5"` installs everything first.

After an interruption or a failure, run the same command again: it resumes. With `nohup` a run continues after you
close its terminal.

| exit code | meaning |
|---|---|
| 0 | success, promoted or not |
| 1 | failure; or `verify`, `lineage` or `status` found something wrong |
| 2 | invalid request: one line names the field, the value and the next step |
| 130, 143 | interrupted by Ctrl-C; terminated |

Every command takes a result in four ways: its URI or path; its name, the last part of the URI; `champion:NAME`, the
champion of a [registered model](../concepts.md); or `champion`, the only champion, or the only champion trained on
your own images. The options call this RESULT.

A [deployment](files.md#parameters-of-deployments) takes the same options as parameters.
"""


def render() -> dict[str, str]:
    """Return the text of each page by its file's name."""
    texts = {"commands.md": _commands(), "recipes.md": _recipes(), "python.md": _python()}
    return {name: f"---\ndescription: {_DESCRIPTIONS[name]}\n---\n{text}" for name, text in texts.items()}


def _commands() -> str:
    group: Any = typer.main.get_command(app.app)
    options = {name: [_option(command, param) for param in command.params] for name, command in group.commands.items()}
    count = collections.Counter(itertools.chain(*options.values()))
    shared = [option for option in count if count[option] > 1 and option.startswith("`--")]
    lines = ["# Which commands and options are there?", _REMADE, _INTRODUCTION.strip(), ""]
    without = ", ".join(_code(name) for name in options if shared[0] not in options[name])
    lines += ["## Options of several commands", "", f"Every command takes `--storage`, except for {without}.", ""]
    lines += [*itertools.chain(*map(_item, shared)), ""]
    for name, command in group.commands.items():
        usage = command.get_usage(_context(name, command)).removeprefix("Usage: ").replace(" [OPTIONS]", "")
        lines += [
            f"## {name}",
            "",
            *([f"`{usage}`", ""] if " " in usage[14:].strip() else []),
            *_paragraphs(command.help),
        ]
        own = [option for option in options[name] if option not in shared]
        also = [re.findall(r"--[a-z-]+", option)[0] for option in options[name] if option in shared[1:]]
        lines += [*itertools.chain(*map(_item, own)), ""] if own else []
        lines += [*textwrap.wrap(f"Also: {', '.join(map(_code, also))}.", _WIDTH, break_on_hyphens=False), ""] * bool(
            also
        )
        lines += _paragraphs(command.epilog)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _code(word: str) -> str:
    return f"`{word}`"


def _context(name: str, command: Any) -> Any:
    return command.context_class(command, info_name=f"data-to-model {name}")


def _option(command: Any, param: Any) -> str:
    """Return an option or argument of a command with its meaning, default and range."""
    spelling, meaning = param.get_help_record(_context("", command))
    spelling = re.sub(r" <(str|list\[str\])>", "", spelling)
    meaning, _, facts = meaning.replace(exits.NAMED, "RESULT").partition("  [")
    default = [fact for fact in facts.rstrip("]").split("; ") if fact.startswith(("default", "env"))]
    return f"`{spelling}`: {_escaped(meaning)}" + (f" ({'; '.join(default)})" if default else "")


def _escaped(text: str) -> str:
    """Return `text` with words such as <class>/*.jpg as code: they are HTML otherwise."""
    return re.sub(r"(?<!\S)\S*<\S+>[^\s:,]*", r"`\g<0>`", text)


def _paragraphs(text: str | None) -> list[str]:
    """Return the paragraphs of a help text; what is indented in it, such as examples, is a block of code."""
    lines: list[str] = []
    text = re.sub(
        r"^(exit codes|After an interruption).*\n?|environment:\n(  .*\n?)*", "", text or "", flags=re.MULTILINE
    )
    for paragraph in text.replace("\b\n", "").split("\n\n"):
        rest = paragraph.strip("\n").split("\n")[1:]
        if rest and all(line.startswith("  ") for line in rest):
            lines += ["```text", *textwrap.dedent("\n".join(rest)).rstrip().split("\n"), "```", ""]
        elif paragraph:
            lines += [*textwrap.wrap(_escaped(" ".join(paragraph.split())), _WIDTH, break_on_hyphens=False), ""]
    return lines


def _recipes() -> str:
    shipped = {name: recipes.load(name) for name in recipes.known()}
    values = {name: recipes.flat(recipe.to_dict()) for name, recipe in shipped.items()}
    described = [line.strip() for line in recipes.described(shipped["images-finetune"])]
    fields_ = {
        head.partition("=")[0]: (head, meaning) for head, meaning in zip(described[::2], described[1::2], strict=True)
    }
    lines = ["# Which fields does a recipe have?", _REMADE, *_RECIPES.strip().split("\n"), ""]
    for title, own in (("for your own images", True), ("for MNIST and CIFAR-10", False)):
        names = [name for name in shipped if (shipped[name].data.source == "user-images") is own]
        lines += ["", f"## Recipes {title}", "", "All other fields have their default.", ""]
        lines += [f"| field | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for field, (head, _) in fields_.items():
            row = [_spelled(values[name].get(field, "")) for name in names]
            default = _spelled(re.findall(r"default: (.*)\)|$", head)[0])
            lines += [f"| `{field}` | {' | '.join(row)} |"] if {*row} - {default, "", "None"} else []
    groups = {"data": "Data: the raw dataset", "split": "Split: the prepared dataset"}
    groups |= {"training": "Model and training: the checkpoint", "gate": "Gate: promotion", "resources": "Resources"}
    for group, title in groups.items():
        names = [name for name in fields_ if _group(name, shipped["images-finetune"]) == group]
        lines += ["", f"## {title}", "", *itertools.chain(*(_item(_field(*fields_[name])) for name in names))]
    return "\n".join(lines) + "\n"


def _group(field: str, recipe: recipes.Recipe) -> str:
    """Return the group that has the field; what only a variant has, such as `momentum`, is of training."""
    groups = {name: value for name, value in recipe.to_dict().items() if isinstance(value, dict)}
    return next((name for name, group in groups.items() if field in recipes.flat(group)), "training")


def _field(head: str, meaning: str) -> str:
    name, value, facts = re.fullmatch(r"(\w+)=(.*?)  \((.*)\)", head).groups()  # type: ignore[union-attr]
    facts = facts.replace("each recipe has its own", "no default")
    facts = re.sub(r"default: (.*)", lambda match: f"default {_spelled(match[1]) or 'none'}", facts)
    kind = "" if "|" in facts else "true or false; " if value in ("True", "False") else ""
    return f"`{name}` ({kind}{facts}): {meaning}"


def _spelled(value: object) -> str:
    """Return a value as `--set` takes it."""
    return re.sub(r"\.0$", "", str(value)).replace("False", "false")


def _python() -> str:
    lines = [
        "# Python",
        _REMADE,
        "What code of your own imports ([how](../your-recipe.md)). Also: [fields](recipes.md).",
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
