"""With MLFLOW_TRACKING_URI a training is one run on a real MLflow server, however often it was started or killed."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow import MlflowClient, artifacts, set_tracking_uri

from storage import manifest
from storage.kinds import CHECKPOINT, EVALUATION, CheckpointURI, EvaluationURI
from storage.uri import Root
from tasks.learning import inference
from tests import mlflow_server
from tests.image_folder import write_folder
from tests.prefect_system import free_port
from tests.runs import CHECKOUT, LIMIT_S, Run, await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_NAME = "photos"
_SETTINGS = {
    "image_size": 24, "model": "small-cnn", "batch_size": 8, "precision": "fp32", "max_quarantined": 0.5,
    "start": "random", "ensemble": "none", "epochs": 8,
}  # fmt: skip


class Project:
    """A user's photos and storage root, and the server that the environment names, whether it runs or not."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.port = folder, Root(str(folder / "root")), free_port()
        self.photos = write_folder(folder / "photos", test=40)
        self.address = f"http://127.0.0.1:{self.port}"
        self.client = MlflowClient(self.address)

    def run(self, **settings: Any) -> Run:
        options = [f"--set={name}={value}" for name, value in (_SETTINGS | settings).items()]
        options += ["--register-as", _NAME, "--storage", self.root, "--workers", "0", "--json"]
        env = {"MLFLOW_TRACKING_URI": self.address}
        return Run("--data", str(self.photos), *options, folder=self.folder / "runs", env=env)

    def command(self, *words: str) -> None:
        env = os.environ | {"MLFLOW_TRACKING_URI": self.address}
        command = [sys.executable, "-m", "flows", *words, "--storage", self.root]
        subprocess.run(command, env=env, cwd=CHECKOUT, check=True, timeout=LIMIT_S)

    def logged(self) -> dict[str, Any]:
        """Every run on the server, by the name of its checkpoint."""
        experiment = self.client.get_experiment_by_name(_NAME)
        runs = self.client.search_runs([experiment.experiment_id]) if experiment else []
        by_name = {run.info.run_name: run for run in runs}
        assert len(by_name) == len(runs)
        return by_name

    def versions(self) -> dict[str, str]:
        """The checkpoint of each version of the registered model."""
        names = {run.info.run_id: name for name, run in self.logged().items()}
        found = self.client.search_model_versions(f"name = '{_NAME}'")
        return {version.version: names[version.run_id] for version in found}

    def champion(self) -> str:
        return self.versions()[self.client.get_registered_model(_NAME).aliases["champion"]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, integration: None) -> Project:
    return Project(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture(scope="module")
def first(project: Project) -> dict[str, Any]:
    """What the first run printed; the server was away."""
    run = project.run()
    document = run.result()
    lines = [line for line in run.log.read_text().splitlines() if "MLflow" in line]
    assert len(lines) == 1 and "WARNING: not logged to MLflow" in lines[0] and "next run logs" in lines[0]
    assert "Traceback" not in run.log.read_text() and "rror:" not in run.log.read_text().replace(lines[0], "")
    return document


@pytest.fixture(scope="module")
def server(project: Project, first: dict[str, Any]) -> Iterator[None]:
    with mlflow_server.serving(project.folder / "server", project.port), contextlib.ExitStack() as stack:
        set_tracking_uri(project.address)
        stack.callback(set_tracking_uri, None)
        yield


def test_the_next_run_logs_what_a_server_that_was_away_does_not_have(
    project: Project, first: dict[str, Any], server: None
) -> None:
    assert all(stage["reused"] for stage in project.run().result()["stages"])
    checkpoint = CheckpointURI(first["uris"]["checkpoint"])
    trained = manifest.load(checkpoint).statistics_of(CHECKPOINT)
    scores = manifest.load(EvaluationURI(first["uris"]["evaluation"])).statistics_of(EVALUATION)
    (run,) = project.logged().values()
    assert (run.info.run_name, run.info.status) == (checkpoint.name, "FINISHED")
    assert {name: run.data.params[name] for name in _SETTINGS} == {name: str(_SETTINGS[name]) for name in _SETTINGS}
    assert run.data.metrics["test_accuracy"] == scores.test_accuracy
    losses = project.client.get_metric_history(run.info.run_id, "validation_loss")
    expected = [(epoch.epoch, epoch.validation_loss) for epoch in trained.history]
    assert [(metric.step, metric.value) for metric in losses] == expected and len(expected) == _SETTINGS["epochs"]
    page = Path(artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="report/index.html"))
    assert page.read_bytes() == Path(first["uris"]["report"], "index.html").read_bytes()
    assert first["champion"] == checkpoint and project.champion() == checkpoint.name


def test_the_alias_loads_the_champion_wherever_storage_is(
    project: Project, first: dict[str, Any], server: None, tmp_path: Path
) -> None:
    project.run().result()
    folder = artifacts.download_artifacts(f"models:/{_NAME}@champion", dst_path=str(tmp_path / "model"))
    photo = [project.photos / "test/pears/photo 0.png"]
    with torch.inference_mode():
        here, there = (inference.load(str(place))(photo) for place in (first["uris"]["checkpoint"], folder))
    assert torch.equal(here, there)


def test_a_run_that_was_killed_and_started_again_is_one_run(
    project: Project, first: dict[str, Any], server: None
) -> None:
    kills = ("train started", "report started", "report done")
    for line in kills:
        run = project.run(seed=1)
        await_that(lambda: run.says(line) or run.process.poll() is not None)  # noqa: B023
        run.process.send_signal(signal.SIGKILL)
        run.process.wait()
    name = CheckpointURI(project.run(seed=1).result()["uris"]["checkpoint"]).name
    before = project.logged()
    assert before.keys() == {CheckpointURI(first["uris"]["checkpoint"]).name, name}
    assert sorted(project.versions().values()) == sorted(before)
    assert len(project.client.get_metric_history(before[name].info.run_id, "train_loss")) == _SETTINGS["epochs"]
    project.run(seed=1).result()
    assert {run: vars(logged.data) for run, logged in project.logged().items()} == {
        run: vars(logged.data) for run, logged in before.items()
    }


def test_a_promotion_and_a_rollback_move_the_alias(project: Project, first: dict[str, Any], server: None) -> None:
    project.run(seed=1).result()
    champion = project.champion()
    (other,) = project.logged().keys() - {champion}
    project.command("promote", other, "--reason", "by hand")
    assert project.champion() == other
    assert re.search("promoted by hand: by hand", project.logged()[other].data.tags["mlflow.note.content"])
    project.command("rollback", _NAME)
    assert project.champion() == champion
    assert project.logged()[champion].data.tags["verdict"] == "rollback"
