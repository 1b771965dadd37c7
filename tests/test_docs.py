"""README and docs name what there is, link to what exists, and keep to their widths and sizes."""

import contextlib
import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prefect import Flow
from pydantic import BaseModel

from flows import pipeline
from flows import predict as prediction
from flows.cli import app
from storage.decision import Decision
from storage.manifest import Manifest
from tasks.auditing import rows as auditing_rows
from tests import documented, prose, reference_pages
from tests.runs import CHECKOUT

DOCS = CHECKOUT / "docs"
FILES = (DOCS / "reference/files.md").read_text()
PAGES = sorted([*CHECKOUT.glob("*.md"), *DOCS.rglob("*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_OPTION = re.compile(r"`(--[a-z][a-z0-9-]*)")
_OF_OTHERS = {
    *("--metrics-export-port", "--object-spilling-directory", "--object-store-memory", "--param", "--rate"),
    *("--help", "--shm-size"),
}
"""Options in the docs that other programs have; options in their commands are not checked."""
_OF_LIBRARIES = {
    *("Expected more than", "value per channel", "Process exited with", "database is locked", "Address already in"),
    "No module named",
}
"""First words of titles of the troubleshooting that Python, torch, Ray and SQLite say."""
_VARIABLE = re.compile(r"PIPELINE(?:_[A-Z0-9]+)+")
_CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def _name(page: Path) -> str:
    return str(page.relative_to(CHECKOUT))


def _deployments() -> set[str]:
    declared = yaml.safe_load((CHECKOUT / "prefect.yaml").read_text())["deployments"]
    return {f"{entry['entrypoint'].rpartition(':')[2]}/{entry['name']}" for entry in declared}


def test_the_table_of_deployments_is_that_of_prefect_yaml() -> None:
    assert (
        set(re.findall(r"^\| `([a-z0-9-]+/[a-z]+)` \|", (DOCS / "retrain.md").read_text(), re.MULTILINE))
        == _deployments()
    )


def test_every_option_that_a_page_names_exists() -> None:
    group: Any = typer.main.get_command(app.app)
    options = {
        option for command in (group, *group.commands.values()) for param in command.params for option in param.opts
    }
    for script in (*(CHECKOUT / "benchmarks").glob("*.py"), CHECKOUT / "tests/faults/__main__.py"):
        options |= set(re.findall(r'\(\s*"(--[a-z-]+)"', script.read_text()))
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which names what was renamed
    named = {option: page.name for page in pages for option in _OPTION.findall(page.read_text())}
    assert {option: page for option, page in named.items() if option not in options | _OF_OTHERS} == {}


def test_reference_pages_are_what_the_code_says() -> None:
    for name, text in reference_pages.render().items():
        assert (reference_pages.FOLDER / name).read_text() == text, "write them anew: python -m tests.reference_pages"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_command_of_a_page_is_a_valid_request(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    group: Any = typer.main.get_command(app.app)
    for words in _commands(page.read_text()):
        if words[0] == "make":
            assert words[1] in targets, words
        elif words[:2] == ["python", "-m"] and words[2].startswith(("tests.", "benchmarks")):
            assert importlib.util.find_spec(words[2]), words
        elif (parsed := _of_the_pipeline(words)) and not {"--help", "--version"} & set(parsed):
            command = group.commands[parsed[0]]
            command.make_context(
                parsed[0], [word for word in parsed[1:] if word != "..."]
            )  # raises for an unknown option or a value out of range


def _commands(text: str) -> list[list[str]]:
    """The words of each command after a prompt, without assignments before it and what follows a pipe."""
    commands = []
    for block in re.findall(r"^ *```console\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^[ a-z]*\$ (.*)$", re.sub(r"\\\n *", "", block), re.MULTILINE):
            with contextlib.suppress(ValueError):  # a text of several lines in quotes
                words = shlex.split(re.sub(r"[0-9]*[<>|&;].*", "", line), comments=True)
                words = list(itertools.dropwhile(lambda word: re.fullmatch(r"[A-Z_]+=.*", word), words))
                commands.append(words or [""])
    return commands


def _of_the_pipeline(words: list[str]) -> list[str]:
    """Return the subcommand and its words, nothing if it is another program."""
    words = [Path(words[0]).name, *words[1:]]
    if words[0] == "data-to-model":
        return words[1:]
    if words[:3] == ["python", "-m", "flows"]:
        return words[3:]
    if words[0] == "python" and len(words) > 1 and (script := re.fullmatch(r"flows/(\w+)\.py", words[1])):
        return ["run" if script[1] == "pipeline" else script[1], *words[2:]]
    return []


def test_every_environment_variable_of_ours_stands_in_the_table() -> None:
    files = [path for room in ("flows", "tasks", "storage") for path in (CHECKOUT / room).rglob("*.py")]
    variables = {name for path in files for name in _VARIABLE.findall(path.read_text())}
    (section,) = re.findall(r"^## Environment variables$(.*)", FILES, re.MULTILINE | re.DOTALL)
    names = " ".join(re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE))
    assert {name for name in re.findall(r"`([A-Z0-9_]+)[=`]", names) if _VARIABLE.fullmatch(name)} == variables


@pytest.mark.parametrize(("heading", "model"), [("Registry", Decision), ("Manifest", Manifest)])
def test_the_keys_of_a_file_are_those_of_the_code(heading: str, model: type[BaseModel]) -> None:
    fields = {field.alias or name for name, field in model.model_fields.items()}
    assert documented.keys(heading) - {"digest", "previous"} == fields - {"digest"}


def test_the_columns_of_an_audit_are_those_of_the_code() -> None:
    assert documented.keys("One suspect of `audit`") == set(auditing_rows.SCHEMA.names)


@pytest.mark.parametrize(("row", "flow"), [("`images`", pipeline.images), ("`predict`", prediction.predict)])
def test_the_parameters_of_deployments_are_those_of_the_flows(row: str, flow: Flow[..., Any]) -> None:
    (names,) = re.findall(rf"^- .*{row}: (.*?)\.$", FILES, re.MULTILINE | re.DOTALL)
    assert re.findall(r"`(\w+)`", names) == list(flow.parameters.properties)


def test_every_message_of_the_troubleshooting_is_in_the_code() -> None:
    code = "".join(
        path.read_text() for room in ("flows", "tasks", "storage") for path in (CHECKOUT / room).rglob("*.py")
    )
    code = re.sub(r"\"\s+f?\"", "", code)  # strings of several lines
    page = (DOCS / "troubleshooting.md").read_text()
    titles = re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\*\*(.*?)\*\*", page, re.MULTILINE | re.DOTALL)))
    pieces = [piece.split() for title in titles for piece in re.split(r"\.\.\.|\d+", title)]
    in_threes = [[" ".join(words[i : i + 3]) for i in range(len(words) - 2)] for words in pieces if len(words) > 2]
    assert len(in_threes) > 20
    unknown = [threes[0] for threes in in_threes if not any(three in code for three in threes)]
    assert set(unknown) <= _OF_LIBRARIES


def test_every_guarantee_names_a_test_that_exists() -> None:
    tables = re.findall(r"^\| promise .*\n\|[-|]*\n((?:\|.*\n)+)", (DOCS / "guarantees.md").read_text(), re.MULTILINE)
    names = re.findall(r"`?([^|`]+)`? \|$", "".join(tables), re.MULTILINE)
    assert len(names) > 20
    assert [name for name in names if name != "make faults" and not (CHECKOUT / "tests" / name).exists()] == []


def test_no_line_is_longer_than_120_characters_except_of_what_a_program_prints() -> None:
    texts = {_name(page): re.sub(r"```text\n.*?```", "", page.read_text(), flags=re.DOTALL) for page in PAGES}
    assert [(name, line) for name, text in texts.items() for line in text.splitlines() if len(line) > 120] == []


def test_every_relative_link_resolves() -> None:
    links = [(page, link) for page in PAGES for link in _LINK.findall(_CODE.sub("", page.read_text()))]
    assert [(_name(page), link) for page, link in links if "://" not in link and not _resolves(link, page)] == []


def test_every_page_is_in_the_index_and_in_the_navigation() -> None:
    internal = set((DOCS / "internals").glob("*.md"))
    assert set(prose.site()) == set(DOCS.rglob("*.md")) - internal
    linked = [link for link in _LINK.findall((DOCS / "README.md").read_text()) if link.endswith(".md")]
    assert linked == [str(page.relative_to(DOCS)) for page in prose.site()[1:]]


def test_every_page_of_the_site_has_a_description_of_its_own() -> None:
    starts = [page.read_text().split("\n", maxsplit=3) for page in prose.site()]
    descriptions = [lines[1] for lines in starts if lines[0] == lines[2] == "---"]
    assert len({line for line in descriptions if line.startswith("description: ")}) == len(starts)


def test_no_count_of_what_makes_prose_hard_to_read_is_over_its_limit() -> None:
    over = {count: number for count, number in prose.counts().items() if number > prose.LIMITS[count]}
    assert over == {}, "python -m tests.prose --list prints each finding"


@pytest.mark.usefixtures("integration")
def test_the_installed_command_prints_the_version_of_the_project() -> None:
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    command = [str(Path(sys.executable).with_name("data-to-model")), "--version"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == f"data-to-model {version}\n"


def _resolves(link: str, page: Path) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """The names that headings of `page` have in links."""
    headings = re.findall(r"^#+ (.+)$", _CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
