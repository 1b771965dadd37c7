"""`import data_to_model`: the commands as functions, in a notebook and beside packages with the names of ours."""

import ast
import asyncio
import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import data_to_model as d2m
from flows.__main__ import main
from flows.cli.commands import COMMANDS
from storage.decision import Decision
from tests.finished import Finished
from tests.runs import CHECKOUT, prefect_home

_COMMAND = str(Path(sys.executable).with_name("data-to-model"))
_LIMIT_S = 900
_BLOCKS = re.findall(r"^```python\n(.*?)^```", (CHECKOUT / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL)
_NOTEBOOK = nbformat.read(CHECKOUT / "examples/notebook.ipynb", as_version=4)


@pytest.fixture
def others(tmp_path: Path, integration: None) -> dict[str, str]:
    """The environment of somebody whose own `tasks`, `flows` and `storage` are on PYTHONPATH, and whose home is new."""
    folder = tmp_path / "others"
    for name in ("tasks/__init__.py", "flows/__init__.py", "storage.py", "tasks/jobs/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise RuntimeError('somebody else is imported')")
    prefect_home(tmp_path / "prefect")
    env = os.environ | {"PYTHONPATH": str(folder), "PREFECT_HOME": str(tmp_path / "prefect")}
    return {name: value for name, value in env.items() if name not in ("PREFECT_API_URL", "PIPELINE_STORAGE")}


@pytest.mark.slow
def test_packages_of_others_with_the_same_names_do_not_disturb_the_installed_command(
    tmp_path: Path, others: dict[str, str]
) -> None:
    run = ["run", "--set", "model=small-cnn", "--set", "epochs=1", "--set", "minimum=0.3"]
    for words in (["--help"], [*run, "--workers", "0"], [*run, "--set", "seed=1"]):  # the last one uses Ray
        command = [_COMMAND, *words]
        done = subprocess.run(command, cwd=tmp_path, env=others, capture_output=True, text=True, timeout=_LIMIT_S)
        assert done.returncode == 0 and "somebody else" not in done.stdout + done.stderr, done.stderr
    program = "import data_to_model as d2m, tasks; print(tasks.__file__, d2m.champion().champion)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=others, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{CHECKOUT}/tasks/__init__.py {tmp_path}/data/checkpoints/mnist-sample-small-cnn-")


@pytest.mark.parametrize(
    ("file", "named"), [("storage.py", "{folder}/storage.py"), ("storage/notes.py", "a folder without __init__.py")]
)
def test_a_package_of_others_that_is_imported_already_is_named(
    tmp_path: Path, integration: None, file: str, named: str
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import storage, data_to_model"
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert f"ImportError: the name 'storage' is taken by {named.format(folder=tmp_path)}" in done.stderr


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel_and_shows_results_and_no_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, integration: None
) -> None:
    prefect_home(tmp_path / "prefect")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    for name in ("PREFECT_API_URL", "PIPELINE_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(_NOTEBOOK, timeout=_LIMIT_S, kernel_name="python3", resources=resources).execute()
    cells = [cell for cell in _NOTEBOOK.cells if cell.cell_type == "code"]
    streams = [output for cell in cells for output in cell.outputs if output.output_type == "stream"]
    assert [(output.name, output.text) for output in streams] == [
        ("stdout", "--set: there is no recipe field 'epoch'; did you mean 'epochs'? see data-to-model recipes\n")
    ]
    texts = ["".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs) for cell in cells]
    assert f"Run(files='{tmp_path}/data/downloads/mnist-sample-" in texts[1]
    assert "promoted" in texts[2]
    assert re.search(r"(?s)test_accuracy .*mnist-sample-small-cnn-\w{12} .*mnist-sample-small-cnn-\w{12} ", texts[3])
    assert "balanced_accuracy" in texts[4] and "prediction" in texts[6] and "likely" in texts[8]
    assert f"{tmp_path}/data/checkpoints/mnist-sample-small-cnn-" in texts[5] and texts[7].startswith("tensor([[")


def test_the_notebook_is_stored_without_outputs() -> None:
    stored = nbformat.read(CHECKOUT / "examples/notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in stored.cells)


def test_functions_answer_as_their_commands_do_quietly_and_in_a_running_event_loop(
    finished: Finished, capfd: pytest.CaptureFixture[str], integration: None
) -> None:
    a, b, root = finished.champion.train.target, finished.plan.train.target, str(finished.root)

    async def call() -> tuple[d2m.Diff, Decision]:
        return d2m.diff(a, b, storage=root), d2m.champion(storage=root)

    found, decision = asyncio.run(call())
    assert capfd.readouterr() == ("", "")
    assert main(["diff", a, b, "--storage", root, "--json"]) == 0
    assert found.document == json.loads(capfd.readouterr().out)
    assert found.changes == found.document["changes"] and "test_accuracy" in found.metrics.index
    assert decision.champion == a and decision.promoted
    assert d2m.load(storage=root).classes == d2m.load(a).classes


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (
            d2m.run,
            {"workers": -1},
            "--workers: must be greater than or equal to 0; see data-to-model run --help",
        ),
        (
            d2m.run,
            {"settings": {"epoch": 1}},
            "--set: there is no recipe field 'epoch'; did you mean 'epochs'[?] see .*",
        ),
        (d2m.run, {"settings": ["epochs=0"]}, "--set: .*epochs.*"),
        (d2m.predict, {"data": "nowhere"}, ".*nowhere.*"),
        (
            d2m.diff,
            {"a": "x", "b": "y"},
            "--storage: .* does not exist or is empty; train a model first: data-to-model run, or .*",
        ),
        (d2m.champion, {}, ".* has no champion; train a model first: data-to-model run"),
    ],
)
def test_an_invalid_request_is_a_value_error_with_the_sentence_of_the_command(
    tmp_path: Path, integration: None, call: Callable[..., object], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$") as error:
        call(**options, storage=str(tmp_path))
    assert "\n" not in str(error.value) and type(error.value) is ValueError


def test_progress_is_shown_if_it_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], integration: None
) -> None:
    with pytest.raises(ValueError, match="^--set: "):
        d2m.run(settings={"epochs": 0}, storage=str(tmp_path), verbose=True)
    assert capsys.readouterr().err.startswith("starting: checking the request ...\n")


@pytest.mark.parametrize("function", [d2m.run, d2m.predict, d2m.audit, d2m.diff])
def test_functions_have_the_options_of_their_commands(function: Callable[..., object]) -> None:
    parameters = inspect.signature(function).parameters
    (options,) = (each for each in COMMANDS if each.runs.endswith(f":{function.__name__}"))
    names = {field.name for field in dataclasses.fields(options)} - {"as_json", "check"}
    assert parameters.keys() - {"verbose"} == names and function.__doc__ == options.__doc__


def test_every_call_in_the_docs_has_the_parameters_of_its_function() -> None:
    cells = ["".join(cell.source) for cell in _NOTEBOOK.cells if cell.cell_type == "code"]
    calls = [node for text in [*_BLOCKS, *cells] for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    ours = [call for call in calls if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "d2m"]
    for call in ours:
        assert isinstance(call.func, ast.Attribute)
        named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        inspect.signature(getattr(d2m, call.func.attr)).bind(*call.args, **named)
    assert len(ours) >= 8
