"""What is wrong with a request is said in one line, before anything slow starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows import cli
from tests.runs import CHECKOUT
from tests.s3 import Server


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--recipe", "nosuch"], ["recipe", "'nosuch'", "mnist-resnet18"]),
        (["--set", "epochs=0"], ["epochs", "0", ">= 1"]),
        (["--set", "nosuch=1"], ["--set", "'nosuch'", "learning_rate"]),
        (["--set", "epochs"], ["--set", "field=value", "'epochs'"]),
        (["--workers", "-1"], ["--workers", "-1", ">= 1"]),
        (["--workers", "many"], ["--workers", "'many'"]),
        (["--workers", "500"], ["--workers", "500", "at most"]),
        (["--source", "/no/such/folder"], ["--source", "/no/such/folder"]),
        (["--source", "ftp://host/"], ["--source", "ftp://host/"]),
        (["--source", "sample", "--no-sample"], ["--source sample", "--no-sample"]),
        (["--deadline", "0"], ["--deadline", "0"]),
        (["--storage", "/proc/nosuch"], ["--storage", "/proc/nosuch"]),
        (["--storage", "gopher://x"], ["--storage", "gopher://x"]),
        (["--nosuch"], ["--nosuch"]),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if "--storage" not in arguments:
        arguments = [*arguments, "--storage", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    for word in words:
        assert word in said.err


def test_a_bucket_that_does_not_exist_is_refused(s3: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--storage", "s3://no-such-bucket/x"])
    assert ended.value.code == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_bucket_that_refuses_the_keys_is_refused(
    s3: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(SystemExit) as ended:
        cli.main(["--storage", f"s3://{s3.bucket}/x"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "access is refused" in said
    assert "not-the-secret" not in said


def test_a_wrong_request_imports_neither_prefect_nor_ray() -> None:
    code = """
import runpy, sys
sys.argv = ["pipeline.py", "--set", "epochs=0"]
try:
    runpy.run_path("flows/pipeline.py", run_name="__main__")
except SystemExit as ended:
    print(ended.code, *sorted({"prefect", "ray", "torch"} & set(sys.modules)))
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["2"]


@pytest.mark.parametrize(("option", "recipe"), [([], "mnist-sample-resnet18"), (["--no-sample"], "mnist-resnet18")])
def test_the_sample_is_taken_when_no_mirror_accepts_a_connection(
    option: list[str], recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:1")  # nothing listens there
    request = cli.checked(cli.parser().parse_args(["--storage", str(tmp_path), "--set", "epochs=2", *option]))
    assert (request["recipe"], request["settings"]) == (recipe, {"epochs": 2})
