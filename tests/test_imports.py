"""Imports run one way through the layers and in no circle, heavy imports come late, and no file is too long."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = [
    *("flows", "tasks", "tasks.runners", "tasks.orchestration", "tasks.comparing", "tasks.planning"),
    *("storage.__main__", "tasks.promotion", "tasks.runs_page", "tasks.auditing", "tasks.report_page"),
    *("tasks.exporting", "tasks.jobs", "tasks.resources", "tasks.learning", "storage.admin", "storage"),
]
"""The house: each room may import itself and what comes after it."""
FORBIDDEN = {
    "flows": {"ray", "torch", "torchvision"},
    "tasks.auditing": {"prefect", "ray", "torch"},
    "tasks.report_page": {"prefect", "ray"},
    "tasks.runs_page": {"prefect", "ray", "torch", "torchvision"},
    "tasks.comparing": {"prefect", "ray", "torch", "torchvision"},
    "tasks.exporting": {"prefect", "ray"},
    "tasks.promotion": {"prefect", "ray", "torch", "torchvision"},
    "tasks.jobs": {"prefect"},
    "tasks.resources": {"prefect"},
    "tasks.learning": {"prefect", "ray"},
}
"""Packages of others that a layer does without."""
STORAGE_ALLOWED = {
    *("botocore", "pandas", "pyarrow", "pydantic", "pydantic_core", "rich", "s3fs"),
    *("tenacity", "typer"),
    *sys.stdlib_module_names,
}
"""All that `storage` imports."""
MAX_LINES = 300
"""Most lines of a file; a longer one is split by what it is about."""
MODULES = sorted(path for top in ("flows", "tasks", "storage") for path in (ROOT / top).rglob("*.py"))


def test_modules_import_only_what_their_layers_may() -> None:
    wrong = {}
    for path in MODULES:
        layer = _layer(_dotted(path))
        assert layer, path
        wrong[path] = [name for name in _imported(path.read_text(), _package(path)) if not _may_import(layer, name)]
    assert {str(path.relative_to(ROOT)): names for path, names in wrong.items() if names} == {}


def test_no_file_is_too_long_to_be_read_at_once() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: number for name, number in lines.items() if number > MAX_LINES} == {}


@pytest.mark.parametrize(
    ("layer", "statement"),
    [
        ("storage", "import torch"),
        ("storage", "from tasks.learning import recipes"),
        ("storage", "from storage.admin import gc"),
        ("tasks.learning", "def f():\n    from ray import data"),
        ("tasks.learning", "from tasks import jobs"),
        ("tasks.learning", "from .. import stage"),
        ("tasks.jobs", "import prefect.flow_runs"),
        ("tasks", "from flows.pipeline import main"),
    ],
)
def test_wrong_import_is_noticed(layer: str, statement: str) -> None:
    assert [name for name in _imported(statement, layer) if not _may_import(layer, name)]


def test_cheap_modules_take_in_nothing_heavy() -> None:
    cheap = "storage.files, storage.tables, tasks.learning.recipes, tasks.learning.sources, tasks.jobs.train"
    cheap += ", tasks.jobs.predict, tasks.jobs.preprocess"
    program = f"import sys, {cheap}; print(*{{'ray', 'torch', 'torchvision', 'prefect', 's3fs'}} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []


def test_no_files_import_each_other_in_a_circle() -> None:
    modules = {_dotted(path): path for path in MODULES}
    graph = {
        name: {_module(found, modules) for found in _imported(path.read_text(), _package(path), at_run_time=True)}
        for name, path in modules.items()
    }
    TopologicalSorter({name: found - {None, name} for name, found in graph.items()}).prepare()


def test_a_circle_is_noticed() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({"one": {"two"}, "two": {"one"}}).prepare()


def _module(name: str, modules: dict[str, Path]) -> str | None:
    """The module of ours that an import of `name` refers to, which may be one of its names."""
    return next((one for one in (name, name.rpartition(".")[0]) if one in modules), None)


def _may_import(layer: str, name: str) -> bool:
    target = _layer(name)
    if target:
        return LAYERS.index(target) >= LAYERS.index(layer)
    top = name.partition(".")[0]
    return top in STORAGE_ALLOWED if layer.startswith("storage") else top not in FORBIDDEN.get(layer, set[str]())


def _layer(name: str) -> str | None:
    """The layer that a dotted name belongs to, none when it is not ours."""
    holders = [layer for layer in LAYERS if name == layer or name.startswith(f"{layer}.")]
    return max(holders, key=len, default=None)


def _imported(source: str, package: str, *, at_run_time: bool = False) -> Iterator[str]:
    """Dotted names of all that `source`, a module of `package`, imports at any depth.

    `at_run_time`: only what the module itself imports, not what only type checkers or the script of its file do.
    """
    tree = ast.parse(source)
    checked = [node for node in ast.walk(tree) if isinstance(node, ast.If) and _is_apart(ast.unparse(node.test))]
    apart = {inner for node in checked for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if at_run_time and node in apart:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _is_apart(condition: str) -> bool:
    return condition in ("TYPE_CHECKING", "__name__ == '__main__'")


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _package(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parent.parts)
