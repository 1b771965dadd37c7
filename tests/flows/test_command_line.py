"""Invalid requests end in one line, before anything slow starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main, preflight
from flows.cli.arguments import parser
from flows.server import up
from storage.exits import guarded
from tests.runs import CHECKOUT, no_flow
from tests.s3 import Server


def test_a_bucket_that_does_not_exist_is_refused(s3: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(no_flow, ["--storage", "s3://no-such-bucket/x"])
    assert ended.value.code == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_bucket_that_refuses_the_keys_is_refused(
    s3: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(SystemExit) as ended:
        main.main(no_flow, ["--storage", f"s3://{s3.bucket}/x"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "access denied" in said
    assert "not-the-secret" not in said


@pytest.mark.parametrize("address", ["http://user:hidden@{}/", "http://{}/?key=hidden"])
def test_keys_in_the_address_of_the_s3_server_are_refused_and_not_shown(
    s3: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", address.format(s3.endpoint.removeprefix("http://")))
    with pytest.raises(SystemExit) as ended:
        main.main(no_flow, ["--storage", f"s3://{s3.bucket}/x"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "AWS_ENDPOINT_URL must not contain a user name, password or query" in said
    assert len(said.splitlines()) == 1 and "hidden" not in said


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "0", "::", "::ffff:0.0.0.0", "", "192.0.2.1", "127.0.0.1.evil.example", "no such host"]
)
def test_a_server_that_others_can_reach_is_refused_without_a_password(
    host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING", raising=False)
    monkeypatch.setattr("sys.argv", ["up.py", "--host", host, "--port", "0"])
    with pytest.raises(SystemExit) as ended:
        up.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("error: --host ") and len(said.splitlines()) == 1


@pytest.mark.parametrize(("host", "password"), [("127.0.0.1", ""), ("localhost", ""), ("0.0.0.0", "user:password")])
def test_a_server_that_only_this_machine_can_reach_or_that_has_a_password_is_not(
    host: str, password: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", password)
    monkeypatch.setattr("sys.argv", ["up.py", "--host", host, "--port", "0"])
    with pytest.raises(SystemExit):
        up.main()
    assert capsys.readouterr().err == "error: --port must be 1 to 65535, got 0\n"


@pytest.mark.parametrize(
    "words",
    [
        ["flows/pipeline.py", "--set", "epochs=0"],
        ["flows/pipeline.py", "--data", "/no/such/place"],
        ["flows/predict.py", "--dataset", "/no/such/place"],
        ["flows/backfill.py", "--storage", "/no/such/place"],
        ["flows/server/up.py", "--port", "0"],
        ["flows/server/deploy.py", "extra"],
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


def test_the_sample_is_taken_when_no_mirror_accepts_a_connection_unless_it_must_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:1")  # nothing listens there
    monkeypatch.setattr("urllib.request._opener", None)  # it keeps the proxies of its first use, also for later tests
    arguments = ["--storage", str(tmp_path), "--set", "epochs=2"]
    request = preflight.check_and_plan(parser().parse_args(arguments)).request
    assert (request["recipe"], request["settings"]) == ("mnist-sample-resnet18", {"epochs": 2})
    with pytest.raises(ValueError, match="no mirror of mnist can be reached .* --source URL_OR_DIR"):
        preflight.check_and_plan(parser().parse_args([*arguments, "--no-sample"]))


def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    program = "from storage.exits import guarded; from storage.terminal import show; "
    program += "guarded(lambda: [show('line') for _ in range(100_000)] and 0)"
    pipe = f'{sys.executable} -c "{program}" | head -n 1'
    ended = subprocess.run(pipe, shell=True, cwd=CHECKOUT, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("line\n", "")


def test_a_connection_that_breaks_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise BrokenPipeError(32, "Broken pipe")

    assert guarded(work) == 1
    assert capfd.readouterr().err.startswith("error: BrokenPipeError: [Errno 32] Broken pipe")
