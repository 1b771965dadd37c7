"""Output on a terminal, and in files."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from storage import terminal
from storage.uri import Root
from tests import committed
from tests.runs import CHECKOUT


def test_control_characters_of_a_name_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show("class \x1b]52;c;ZXZpbA==\x07 \x1b[2J\r\x9b1m \u202egnp.exe\tä猫\nnext line")
    assert capsys.readouterr().out == (
        "class \\x1b]52;c;ZXZpbA==\\x07 \\x1b[2J\\r\\x9b1m \\u202egnp.exe\tä猫\nnext line\n"
    )


@pytest.mark.usefixtures("integration")
def test_every_uri_is_whole_and_relative_at_a_terminal_and_in_full_in_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    root = Root(str(folder / "data"))
    model = committed.run(root, "a-data-set-with-quite-a-long-name")
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env |= {"TERM": "xterm", "COLUMNS": "80", "PYTHONPATH": str(CHECKOUT)}
    for words in (["ls"], ["lineage", model.report]):
        command = [sys.executable, "-m", "flows", *words]
        at_terminal, done = (
            subprocess.run(each, env=env, cwd=folder, capture_output=True, text=True, check=True)
            for each in (["script", "-qec", shlex.join(command), os.devnull], command)
        )
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", at_terminal.stdout).splitlines()
        assert done.stderr == "" and [line.replace(f"{folder}/", "") for line in done.stdout.splitlines()] == lines
        assert any("data/" in line for line in lines) and not any(f"{folder}/" in line for line in lines)
        assert root in done.stdout


def test_paths_below_the_working_directory_are_printed_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert terminal.short(f"at {tmp_path}/data/x: {tmp_path}") == f"at data/x: {tmp_path}"
    for other in (f"s3://bucket{tmp_path}/data", f"/copy{tmp_path}/data", f"{tmp_path}2/data"):
        assert terminal.short(other) == other
    monkeypatch.chdir("/")
    assert terminal.short("/data") == "/data"
