"""`--check` reports everything that would make a run fail, and the run fails with the same words."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli import app
from storage.uri import Root
from tasks.resources import capacity
from tasks.runners import nodes
from tests import mirrors
from tests.image_folder import write_folder
from tests.runs import no_flow

ALL = ["request", "Ray", "storage", "data", "classes", "labels", "run", "model", "disk", "nodes", "Prefect"]


def run(*words: str) -> int:
    """The exit code of a run that must not get to its flow."""
    return app.main(no_flow, "run", words=words)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No cluster, no Prefect server, and the test's own storage."""
    from prefect.settings import PREFECT_HOME, temporary_settings

    for name in ("RAY_ADDRESS", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIPELINE_STORAGE", str(tmp_path / "root"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    (tmp_path / "prefect").mkdir()
    with temporary_settings({PREFECT_HOME: tmp_path / "prefect"}):  # Prefect reads the variable only once
        yield


Check = Callable[..., dict[str, tuple[str, str]]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Carries out `--check` and gives verdict and words for each thing; a run would say the first refusal."""

    def check(*arguments: str, refused: tuple[str, ...] = ()) -> dict[str, tuple[str, str]]:
        code = run("--check", *arguments)
        lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
        assert [what for _, what, _ in lines] == ALL
        found = {what: (verdict, about) for verdict, what, about in lines}
        assert tuple(what for what, (verdict, _) in found.items() if verdict == "refused") == refused
        assert code == (2 if refused else 0)
        if refused:
            assert run(*arguments) == 2
            said = capsys.readouterr().err.replace("starting Ray and Prefect ...\n", "")
            assert said == f"{app.STARTING}\nerror: {found[refused[0]][1]}\n"
        return found

    return check


def test_successful_checks_say_what_the_run_will_do_and_leave_no_folder(check: Check, tmp_path: Path) -> None:
    found = check("--set", "seed=3", "--set", "epochs=7")
    assert found["Prefect"] == ("ok", "a temporary server for this run")
    assert found["data"] == ("ok", "the bundled sample of 7,000 MNIST digits, not the full data set")
    assert "GB free in" in found["disk"][1]
    assert found["request"][1] == "recipe mnist-sample-resnet18 with epochs=7, seed=3"
    stages = "to do: download, ingest, preprocess, train, predict, evaluate"
    assert found["run"][1] == f"mnist-sample-resnet18 on mnist-sample, 7 epochs; {stages}"
    assert not (tmp_path / "root").exists()


def test_json_lists_every_check_with_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--check", "--json", "--workers", "500", "--set", "batch_size=1000") == 2
    told = json.loads(capsys.readouterr().out)
    assert [one["check"] for one in told] == ALL
    assert [one["verdict"] for one in told] == ["ok", "refused", *["ok"] * 9]


def test_a_refused_run_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--data", str(tmp_path / "nothing")) == 2
    assert "--data: nothing exists at" in capsys.readouterr().err
    assert not (tmp_path / "root").exists()
    assert app.main(no_flow, "predict", words=["--data", str(tmp_path / "nothing")]) == 2
    assert "--data" in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


def test_a_run_that_is_not_refused_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    for split in ("train", "test"):
        pq.write_table(pa.table({"image": [b"", b""], "label": ["cat", "dog"]}), tmp_path / f"photos/{split}.parquet")
    options = ["--data", str(tmp_path / "photos"), "--storage", str(tmp_path / "store"), "--workers", "0"]
    assert run("--recipe", "images-resnet18", *options) == 1
    assert "a flow began: " in capsys.readouterr().err
    assert (tmp_path / "store").exists()


def test_checks_that_depend_on_a_failed_one_are_skipped(check: Check) -> None:
    found = check("--storage", "/sys/nosuch", "--set", "epochs=0", refused=("request", "storage"))
    assert found["request"][1] == "--set: epochs must be greater than or equal to 1, got 0"
    assert {what for what, (verdict, _) in found.items() if verdict == "skipped"} == {
        "Ray", "data", "classes", "labels", "run", "model", "disk", "nodes"
    }  # fmt: skip


OWN_RECIPE = """
from torch import nn

from tasks.learning.recipes import Data, Recipe, Training, own


def missing_package(*, image_shape, num_classes):
    import no_such_package


def wide(*, image_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, num_classes + 1))


def good(*, image_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, num_classes))


def relative(*, image_shape, num_classes):
    open("weights.bin")


def recipe(model):
    return Recipe(name="mine", data=Data(source="mnist-sample"), model=own(model), training=Training(epochs=1))


broken, too_wide, lost = (lambda: recipe(missing_package)), (lambda: recipe(wide)), (lambda: recipe(relative))
usable = lambda: recipe(good)
"""


def test_a_model_that_cannot_be_used_is_found_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_recipe.py").write_text(OWN_RECIPE)
    monkeypatch.chdir(tmp_path)

    def checked(*arguments: str) -> tuple[int, str]:
        code = run("--check", *arguments)
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[1] == "model"]
        return code, line

    def refusal(*arguments: str) -> str:
        code, line = checked(*arguments)
        assert (code, line.split()[0]) == (2, "refused")
        return line

    line = refusal("--recipe", "my_recipe.py:broken")
    assert "ModuleNotFoundError: No module named 'no_such_package'" in line
    assert f"{tmp_path}/my_recipe.py, line 8, in missing_package; import no_such_package" in line
    assert run("--recipe", "my_recipe.py:broken") == 2, "a run is refused, too"
    assert "No module named 'no_such_package'" in capsys.readouterr().err
    assert "of shape (2, 10) (images, classes), got torch.float32 of (2, 11)" in refusal(
        "--recipe", "my_recipe.py:too_wide"
    )
    assert "FileNotFoundError: " in refusal("--recipe", "my_recipe.py:lost"), "a worker has another folder"
    code, line = checked("--recipe", "my_recipe.py:usable")
    assert code == 0 and line.endswith(", 7,850 weights")


def test_a_batch_that_is_large_for_the_images_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(write_folder(tmp_path / "pets", train=24, test=6))
    run("--check", "--recipe", "images-resnet18", "--data", data, "--set", "batch_size=50")
    hint = "WARNING: with about 67 training rows, batch_size=50 gives 1 step an epoch; use a smaller"
    assert hint in capsys.readouterr().out
    run("--check", "--recipe", "images-resnet18", "--data", data, "--set", "batch_size=8")
    assert "WARNING" not in capsys.readouterr().out


def test_a_source_that_nobody_answers_at_is_told(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:1")  # nothing listens there
    monkeypatch.setattr("urllib.request._opener", None)  # it keeps the proxies of its first use, also for later tests
    found = check("--recipe", "mnist-resnet18", refused=("data",))
    assert found["data"][1].startswith("no mirror of mnist can be reached (https://")


def test_a_cluster_that_does_not_answer_is_told(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    with mirrors.refusing() as address:
        monkeypatch.setenv("RAY_ADDRESS", address.rstrip("/"))
        found = check(refused=("Ray", "nodes"))
    assert found["Ray"][1].startswith("RAY_ADDRESS must be the address of a Ray cluster's Jobs API")
    assert "the cluster did not accept a job" in found["nodes"][1]


def test_a_full_disk_is_told(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root").mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path / "root"], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk needs the right to mount one")
    try:
        found = check(refused=("disk",))
        check("--workers", "0", refused=("disk",))
    finally:
        subprocess.run(["umount", tmp_path / "root"], check=True)
    assert found["disk"][1].startswith(f"the disk of {tmp_path}/root is full: 256.0 MB are needed and 1.0 MB free")


def test_a_prefect_server_that_does_not_answer_or_asks_for_another_password_is_told(
    check: Check, prefect_process: dict[Any, Any]
) -> None:
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    with mirrors.refusing() as address, temporary_settings({PREFECT_API_URL: f"{address}api"}):
        found = check(refused=("Prefect",))
        assert found["Prefect"][1].startswith(f"PREFECT_API_URL={address}api: no usable Prefect API (")
    with temporary_settings(prefect_process):
        assert " responds, version " in check()["Prefect"][1]
        with temporary_settings({PREFECT_API_AUTH_STRING: "run:another"}):
            assert "401" in check(refused=("Prefect",))["Prefect"][1]


def test_a_node_that_cannot_do_the_work_says_why(tmp_path: Path) -> None:
    probe = Root(str(tmp_path)).child("_probe-1")
    lock, copy = nodes.look(probe, "b", nodes.versions() | {"Ray": "2.59.0", "code": "0123456789ab"})[1:]
    assert "this process: 2.59.0; install the versions of requirements.lock" in lock
    assert "this process: 0123456789ab; start Ray there without a copy" in copy
    advice = "use s3://bucket/prefix or a shared file system"
    assert nodes.look(probe, "b", nodes.versions()) == [f" sees another folder at {tmp_path}; {advice}"]


def test_a_run_without_ray_asks_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    assert nodes.check_nodes(Root(str(tmp_path)), 0) == "only this machine"
    assert capacity.check_workers(0) == "not used: the work runs in this process"
