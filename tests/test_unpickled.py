"""Nothing from storage, a download or Prefect is ever unpickled, and no text is executed."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import Flow, Task

from tests.test_imports import MODULES, ROOT

_PICKLES = {"pickle", "cloudpickle", "joblib", "dill", "shelve", "marshal"}
_RUN_TEXT = {"eval", "exec", "read_pickle", "to_pickle"}
_NAMED_BY_A_PERSON = {"tasks/learning/user_code.py": ["exec(compile(content, path, 'exec'), vars(module))"]}
"""A recipe's own file, given on the command line; never a file from storage."""
_SAFE_LOADERS = {"SafeLoader", "CSafeLoader"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_unpickles_nothing(path: Path) -> None:
    found = [line.partition(": ")[2] for line in _unsafe(path.read_text())]
    assert found == _NAMED_BY_A_PERSON.get(str(path.relative_to(ROOT)), [])


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import os, joblib.externals",
        "from dill import loads",
        "from ray import cloudpickle",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "eval(text)",
        "builtins.exec(text)",
        "pd.read_pickle(path)",
    ],
)
def test_unsafe_line_is_noticed(line: str) -> None:
    assert list(_unsafe(f"def f():\n    {line}")) == [f"line 2: {line}"]


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(path, weights_only=True)",
        "np.load(path)",
        "np.load(path, allow_pickle=False)",
        "yaml.safe_load(text)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "model.eval()",
        "safetensors.torch.load(content)",
        "manifest.load(uri)",
    ],
)
def test_safe_line_is_let_through(line: str) -> None:
    assert list(_unsafe(line)) == []


def test_results_in_prefect_are_json() -> None:
    found = [one for name in _with_prefect() for one in vars(importlib.import_module(name)).values()]
    flows = {one.name: one for one in found if isinstance(one, Flow)}
    tasks = {one.name: one for one in found if isinstance(one, Task)}
    assert flows.keys() == {"mnist", "fashion-mnist", "cifar10", "images", "predict"}
    assert tasks.keys() == {"download", "ingest", "preprocess", "train", "predict", "evaluate", "promote", "report"}
    assert {one.result_serializer for one in flows.values()} == {"json"}
    assert {(one.result_serializer, one.persist_result) for one in tasks.values()} == {("json", False)}


def _with_prefect() -> Iterator[str]:
    """Dotted names of the modules that hold flows and tasks."""
    for path in MODULES:
        if any(line.startswith(("@flow", "@task")) for line in path.read_text().splitlines()):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _unsafe(source: str) -> Iterator[str]:
    """The lines that unpickle, or run a text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.ImportFrom):
            names = {*(node.module or "").split("."), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Call):
            names = {"pickle"} if _is_unsafe_call(node) else set()
        else:
            continue
        if names & _PICKLES:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def _is_unsafe_call(call: ast.Call) -> bool:
    dotted = ast.unparse(call.func)
    module, _, verb = dotted.rpartition(".")
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if module == "torch" and verb == "load":
        return given.get("weights_only") != "True"
    if module == "yaml" and verb.endswith("load"):
        return verb != "safe_load" and given.get("Loader", "").rpartition(".")[2] not in _SAFE_LOADERS
    # A model's own `eval` only puts it in another mode.
    runs_text = verb in _RUN_TEXT and (verb not in ("eval", "exec") or module in ("", "builtins"))
    return runs_text or given.get("allow_pickle", "False") != "False"
