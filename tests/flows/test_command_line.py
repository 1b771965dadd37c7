"""Commands as processes: what they import, how signals and closed pipes end them, and their help."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import app
from tasks.learning import recipes
from tests.runs import CHECKOUT


@pytest.mark.usefixtures("integration")
def test_sigterm_ends_a_command_with_one_line_also_within_a_flow() -> None:
    program = "import time; from storage.exits import guarded; from prefect.utilities.engine import capture_sigterm\n"
    program += "def work():\n    with capture_sigterm():\n        print('begun', flush=True); time.sleep(60)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{program}raise SystemExit(guarded(work))"],
        cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout and process.stdout.readline() == "begun\n"
    process.terminate()
    assert process.communicate()[1] == "Terminated. Run the same command again to resume.\n"
    assert process.returncode == 143


@pytest.mark.parametrize(
    "words",
    [
        ["flows/pipeline.py", "--data", "/no/such/place"],
        ["flows/__main__.py", "predict", "--data", "/no/such/place"],
        ["flows/__main__.py", "deploy", "extra"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("integration")
def test_a_wrong_request_imports_neither_prefect_nor_ray_and_first_prints_that_it_starts(
    words: list[str], tmp_path: Path
) -> None:
    code = f"""
import runpy, sys
sys.argv = {words}
try:
    runpy.run_path({words[0]!r}, run_name="__main__")
except SystemExit as ended:
    print(ended.code, *sorted({{"prefect", "ray", "torch"}} & set(sys.modules)))
"""
    env = {**os.environ, "PIPELINE_STORAGE": str(tmp_path)}
    program = [sys.executable, "-X", "importtime", "-c", code]
    answer = subprocess.run(program, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["2"], answer.stderr
    if "--data" in words:
        before, line, after = answer.stderr.partition(app.STARTING)
        imported = {line.rpartition("|")[2].strip() for line in before.splitlines()}
        assert line and not imported & {"numpy", "pyarrow", "tasks.learning", "rich"}
        assert "error: --data: nothing exists at" in after


def test_an_empty_call_is_the_help_in_whole_sentences_and_recipes_explain_every_field(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert app.main(words=[]) == 0
    commands = capsys.readouterr().out.partition("Commands:")[2]
    assert "  recipes " in commands and "..." not in commands
    assert app.main(words=["recipes", "images-finetune"]) == 0
    lines = capsys.readouterr().out.splitlines()
    fields, meanings = lines[::2], lines[1::2]
    assert [field.partition("=")[0] for field in fields] == recipes.names()
    assert all(meaning.strip() for meaning in meanings) and "store=pixels  (pixels|files; default: pixels)" in fields


@pytest.mark.usefixtures("integration")
def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    program = "from storage.exits import guarded; from storage.terminal import show; "
    program += "guarded(lambda: [show('line') for _ in range(100_000)] and 0)"
    pipe = f'{sys.executable} -c "{program}" | head -n 1'
    ended = subprocess.run(pipe, shell=True, cwd=CHECKOUT, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("line\n", "")
