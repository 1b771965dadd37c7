"""What is wrong with a request is said in one line, before anything slow starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows import cli
from tests.runs import CHECKOUT
from tests.s3 import Server


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


@pytest.mark.parametrize(
    "words",
    [
        ["flows/pipeline.py", "--set", "epochs=0"],
        ["flows/pipeline.py", "--data", "/no/such/place"],
        ["flows/predict.py", "--dataset", "/no/such/place"],
        ["flows/backfill.py", "--storage", "/no/such/place"],
        ["flows/up.py", "--port", "0"],
        ["flows/deployments.py", "extra"],
    ],
    ids=" ".join,
)
def test_a_wrong_request_imports_neither_prefect_nor_ray(words: list[str], tmp_path: Path) -> None:
    code = f"""
import runpy, sys
sys.argv = {words}
try:
    runpy.run_path({words[0]!r}, run_name="__main__")
except SystemExit as ended:
    print(ended.code, *sorted({{"prefect", "ray", "torch"}} & set(sys.modules)))
"""
    env = {**os.environ, "PIPELINE_STORAGE": str(tmp_path)}
    program = [sys.executable, "-c", code]
    answer = subprocess.run(program, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["2"], answer.stderr


@pytest.mark.parametrize(("option", "recipe"), [([], "mnist-sample-resnet18"), (["--no-sample"], "mnist-resnet18")])
def test_the_sample_is_taken_when_no_mirror_accepts_a_connection(
    option: list[str], recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:1")  # nothing listens there
    request = cli.checked(cli.parser().parse_args(["--storage", str(tmp_path), "--set", "epochs=2", *option]))
    assert (request["recipe"], request["settings"]) == (recipe, {"epochs": 2})
