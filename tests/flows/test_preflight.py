"""`--check` says what each check finds, up to the first that fails; the run fails with the same words."""

import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.cli import app, preflight
from flows.cli.commands import RunOptions
from storage.uri import Root
from tasks.learning import recipes
from tasks.planning import make_plan
from tasks.resources import capacity
from tasks.resources.needs import Needs
from tasks.runners import nodes
from tests import committed, mirrors

ALL = ["request", "storage", "data", "classes", "labels", "recipe", "run", "model", "Ray", "disk", "nodes", "Prefect"]


def run(*words: str) -> int:
    return app.main("run", words=words)


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


Check = Callable[..., dict[str, str]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Carries out `--check` and gives the words of each check; if one is refused, a run says the same."""

    def check(*arguments: str, refused: str = "") -> dict[str, str]:
        code, said = run("--check", *arguments), capsys.readouterr()
        lines = [line.split(maxsplit=2) for line in said.out.splitlines()]
        names = list(dict.fromkeys(name for _, name, _ in lines))
        assert {verdict for verdict, _, _ in lines} <= {"ok"} and names == ALL[: len(names)]
        assert (code, len(names) == len(ALL)) == ((2, False) if refused else (0, True))
        if refused:
            assert said.err.startswith("error: ") and refused in said.err and len(said.err.splitlines()) == 1
            assert run(*arguments) == 2
            again = capsys.readouterr().err.replace("starting Ray and Prefect ...\n", "")
            assert again == f"{app.STARTING}\n{said.err}"
        return {name: "\n".join(about for _, other, about in lines if other == name) for name in names}

    return check


def test_successful_checks_say_what_the_run_will_do(check: Check) -> None:
    found = check("--set", "seed=3", "--set", "epochs=7")
    assert found["Prefect"] == "a temporary server for this run"
    assert found["data"] == "the bundled sample of 7,000 MNIST digits, not all of MNIST"
    assert "GB free in" in found["disk"]
    assert found["request"] == "recipe mnist-sample-resnet18 epochs=7 seed=3"
    fields = dict(field.split("=") for field in found["recipe"].split())
    assert set(recipes.names()) - fields.keys() == {"momentum", "crop_scale", "color_jitter"}  # of other variants
    assert (fields["epochs"], fields["model"], fields["batch_size"]) == ("7", "resnet18", "64")
    assert found["run"] == "to do: download, ingest, preprocess, train, predict, evaluate"


def test_the_first_check_that_fails_is_the_last(check: Check) -> None:
    says = "--set: epochs must be greater than or equal to 1, got 0\n"
    check("--storage", "/sys/nosuch", "--set", "epochs=0", refused=says)


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
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_recipe.py").write_text(OWN_RECIPE)
    monkeypatch.chdir(tmp_path)

    for name, says in {
        "broken": f"{tmp_path}/my_recipe.py, line 8, in missing_package; import no_such_package",
        "too_wide": "of shape (2, 10) (images, classes), got torch.float32 of (2, 11)",
        "lost": "FileNotFoundError: ",  # a worker has another folder
    }.items():
        check("--recipe", f"my_recipe.py:{name}", refused=says)
    assert check("--recipe", "my_recipe.py:usable")["model"].endswith(", 7,850 weights")


def test_a_source_that_does_not_answer_is_refused(check: Check) -> None:
    try:
        with pytest.MonkeyPatch.context() as patch:
            for scheme in ("http", "https"):
                patch.setenv(f"{scheme}_proxy", "http://127.0.0.1:1")  # nothing listens there
            urllib.request.install_opener(urllib.request.build_opener())  # the usual one keeps its first proxies
            check("--recipe", "mnist-resnet18", refused="no mirror of mnist can be reached (https://")
    finally:
        urllib.request.install_opener(urllib.request.build_opener())


def test_a_cluster_that_does_not_answer_is_told_unless_nothing_is_to_do(
    check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with mirrors.refusing() as address:
        monkeypatch.setenv("RAY_ADDRESS", address.rstrip("/"))
        check(refused="RAY_ADDRESS must be the address of a Ray cluster's Jobs API")
        plan = make_plan.make_plan(storage=str(tmp_path / "root"), recipe=recipes.load("mnist-sample-resnet18"))
        committed.commit(plan.preprocess.raw, "raw")
        for stage in (plan.preprocess, plan.train, plan.predict):
            committed.commit(stage.target, stage.kind.name, parents=stage.parents)
        assert not preflight.checked(RunOptions(storage=str(tmp_path / "root"))).needs_ray


@pytest.mark.parametrize(
    ("disk", "size", "message"),
    [
        ("root", "1m", "the disk of {disk} is full: 256.0 MB are needed and 1.0 MB free"),
        ("prefect", "512k", "PREFECT_HOME={disk}: its disk is full; set PREFECT_HOME to another"),
    ],
)
@pytest.mark.usefixtures("integration")
def test_a_full_disk_is_told(check: Check, tmp_path: Path, disk: str, size: str, message: str) -> None:
    (tmp_path / disk).mkdir(exist_ok=True)
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", tmp_path / disk], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk needs the right to mount one")
    try:
        for words in ([], ["--workers", "0"])[: 1 + (disk == "root")]:
            check(*words, refused=message.format(disk=tmp_path / disk))
    finally:
        subprocess.run(["umount", tmp_path / disk], check=True)


def test_a_prefect_server_that_does_not_answer_or_asks_for_another_password_is_told(
    check: Check, prefect_process: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    with mirrors.refusing() as address, temporary_settings({PREFECT_API_URL: f"{address}api"}):
        origin = f".env or prefect.toml in {Path.cwd()}"
        check(refused=f"PREFECT_API_URL={address}api, from {origin}: no usable Prefect API (")
        monkeypatch.setenv("PREFECT_API_URL", f"{address}api")
        check(refused=f"PREFECT_API_URL={address}api, from the environment: no usable Prefect API (")
    with temporary_settings(prefect_process):
        assert " responds, version " in check()["Prefect"]
        with temporary_settings({PREFECT_API_AUTH_STRING: "run:another"}):
            check(refused="PREFECT_API_URL=")


def test_a_node_that_cannot_do_the_work_says_why(tmp_path: Path) -> None:
    probe = Root(str(tmp_path)).child("_probe-1")
    lock, copy = nodes.look(probe, "b", nodes.versions() | {"Ray": "2.59.0", "code": "0123456789ab"})[1:]
    assert "this process: 2.59.0; install the versions of requirements.lock" in lock
    assert "this process: 0123456789ab; start Ray there without a copy" in copy
    advice = "use s3://bucket/prefix or a shared file system"
    assert nodes.look(probe, "b", nodes.versions()) == [f" sees another folder at {tmp_path}; {advice}"]


def test_a_run_without_ray_asks_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    assert nodes.check_nodes(Root(str(tmp_path)), Needs(workers=0)) == "only this machine"
    assert capacity.check_workers(Needs(workers=0)) == "not used: the work runs in this process"
