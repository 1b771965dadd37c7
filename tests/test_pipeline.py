"""Whole runs on real parts: the command line, Prefect's server, Ray jobs, Parquet on a disk and on S3."""

import contextlib
import dataclasses
import json
import os
import re
import stat
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.__main__ import main
from storage import files, manifest, registry, tables
from storage.kinds import CHECKPOINT, EVALUATION, EvaluationURI
from storage.uri import URI, Root
from tasks.learning import sources
from tasks.learning.sources import mnist_sample
from tests import mirrors
from tests.faults.harness import NUM_TEST, raw_name, write_raw
from tests.runs import CHECKOUT, Run, await_that, repeatedly
from tests.s3 import Server

_SETTINGS = {"epochs": 1, "precision": "fp32", "model": "small-cnn", "minimum": 0.5}


def quick(**changes: object) -> list[str]:
    """Arguments of a run of one epoch with a small model, with `changes` of its settings."""
    settings = [f"{name}={value}" for name, value in (_SETTINGS | changes).items()]
    return ["--recipe", "mnist-sample-resnet18", "--json", *(word for one in settings for word in ("--set", one))]


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run that ended well, on a local root."""

    root: Root
    result: dict[str, Any]
    commands: set[str]
    """Of the processes that it started."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, integration: None) -> Finished:
    """One run of one epoch, downloading over HTTP, from a working directory that is not the checkout."""
    folder = tmp_path_factory.mktemp("finished")
    root = Root(str(folder / "root"))
    with mirrors.serve(mnist_sample.FOLDER) as mirror:
        run = Run(*quick(), "--mirror", mirror.address, "--storage", str(root), folder=folder)
        commands: set[str] = set()
        with repeatedly(lambda: commands.update(run.processes().values()), interval_s=0.5):
            result = run.result()
    assert all(file["url"].startswith(mirror.address) for file in result["source"]["files"])
    return Finished(root, result, commands)


def test_a_run_promotes_its_model_and_names_what_it_made(finished: Finished) -> None:
    result = finished.result
    stages = ["download", "ingest", "preprocess", "train", "predict", "evaluate", "promote", "report"]
    assert [stage["name"] for stage in result["stages"]] == stages
    assert not any(stage["reused"] for stage in result["stages"])
    assert result["promoted"] is True
    assert registry.champion(finished.root, "mnist-sample") == result["uris"]["checkpoint"]
    for uri in result["uris"].values():
        manifest.verify(URI(uri))
    page = (Path(result["uris"]["report"]) / "index.html").read_text()
    assert f"{result['metrics']['test_accuracy']:.4f}" in page and result["reason"] in page


def test_every_test_row_is_predicted_exactly_once(finished: Finished) -> None:
    rows = tables.read_split(URI(finished.result["uris"]["predictions"]), "test").to_pandas()
    assert sorted(rows["id"]) == list(range(1000))
    probabilities = rows[[f"probability_{digit}" for digit in range(10)]].to_numpy()
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert (probabilities.argmax(1) == rows["prediction"]).all()
    assert np.allclose(probabilities.max(1), rows["probability"])


def test_a_prediction_leads_back_to_the_checksums_of_the_raw_files(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lineage", finished.result["uris"]["predictions"]]) == 0
    shown = capsys.readouterr().out
    assert all(file.sha256 in shown for file in sources.load("mnist-sample").files)


def test_a_local_ray_has_no_process_that_nobody_needs(finished: Finished) -> None:
    assert not any("tasks.jobs ingest" in command for command in finished.commands), "the sample pays for no job"
    usual = ["ray::RayTrainWorker", "gcs_server"]
    spared = ["ray.util.client.server", "JobSupervisor", "load=JobHead", "AutoscalingCoordinator", "UsageCollection"]
    seen = {name for name in [*usual, *spared, "TrainController"] for command in finished.commands if name in command}
    assert seen == set(usual)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_workers_that_stream_from_an_s3_of_aws_config_predict_every_row_and_no_secret_gets_out(
    s3: Server, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in s3.environment():
        monkeypatch.delenv(name)
    for name, value in s3.configured(tmp_path_factory.mktemp("aws")).items():
        monkeypatch.setenv(name, value)
    root = Root(f"s3://{s3.bucket}/two workers/ä/100%25")
    write_raw(root)
    arguments = ["--workers", "2", "--set", "loader=streaming", "--data", root.child(f"datasets/raw/{raw_name()}")]
    token = f"canary-{uuid.uuid4().hex}"
    env = {"RAY_AUTH_TOKEN": token, "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true"}
    run = Run(*quick(), *arguments, "--storage", root, folder=tmp_path, env=env)
    await_that(lambda: run.says("predict started") or run.process.poll() is not None)
    ray = next(line for line in map(_ray_folder, run.processes().values()) if line)
    assert stat.S_IMODE(ray.stat().st_mode) == 0o700
    assert _places(ray, s3.secret_key) == _places(ray, token) == []
    result = run.result()
    for secret in (s3.secret_key, token):
        assert _places(tmp_path, secret) == []
        assert [entry.path for entry in files.walk(root) if secret.encode() in files.read(root.child(entry.path))] == []
    kept = [path.read_bytes() for path in (tmp_path / "prefect" / "storage").iterdir()]
    assert [json.loads(content)["uris"] for content in kept] == [result["uris"]], "results in Prefect are not JSON"
    rows = tables.read_split(URI(result["uris"]["predictions"]), "test").to_pandas()
    assert sorted(rows["id"]) == list(range(NUM_TEST))
    assert manifest.load(EvaluationURI(result["uris"]["evaluation"])).statistics_of(EVALUATION).num_rows == NUM_TEST
    assert manifest.load(URI(result["uris"]["checkpoint"])).statistics_of(CHECKPOINT).resolved.workers == 2


def test_a_run_without_ray_in_its_own_process_gives_the_same_to_the_bit(finished: Finished, tmp_path: Path) -> None:
    without = tmp_path / "checkout" / "flows" / "without_ray.py"
    without.parent.mkdir(parents=True)
    pipeline = CHECKOUT / "flows" / "pipeline.py"
    program = f"import runpy, sys\nsys.modules['ray'] = None\nrunpy.run_path({str(pipeline)!r}, run_name='__main__')\n"
    without.write_text(program)
    arguments = [*quick(), "--workers", "0", "--storage", str(tmp_path / "root")]
    run = Run(*arguments, folder=tmp_path, script=without.name, checkout=without.parent.parent)
    result = run.result()
    assert not any(stage["reused"] for stage in result["stages"])
    made, other = ({name: URI(uri) for name, uri in one["uris"].items()} for one in (result, finished.result))
    assert made["checkpoint"].name != other["checkpoint"].name
    for kind in ("prepared", "checkpoint", "predictions"):
        assert _digests(made[kind]) == _digests(other[kind]) != set()
    assert result["metrics"] == finished.result["metrics"]


@pytest.mark.slow
def test_the_public_interfaces_of_ray_alone_give_the_same_bytes_as_no_ray(tmp_path: Path) -> None:
    write_raw(Root(str(tmp_path / "raw")))
    data = ["--data", str(tmp_path / "raw" / "datasets" / "raw" / raw_name())]

    def run(*words: str, **env: str) -> Run:
        return Run(
            *quick(minimum=0), *data, *words, "--storage", str(tmp_path / f"root{len(words)}"), folder=tmp_path, env=env
        )

    results = [run(PIPELINE_TUNED="0").result(), run("--workers", "0").result()]
    for kind in ("prepared", "checkpoint", "predictions"):
        with_ray, without = (_digests(URI(result["uris"][kind])) for result in results)
        assert with_ray == without
    again, commands = run(PIPELINE_TUNED="0"), set[str]()
    with repeatedly(lambda: commands.update(again.processes().values()), interval_s=0.1):
        result = again.result()
    assert [stage["name"] for stage in result["stages"] if not stage["reused"]] == [], "the same command again"
    assert (result["uris"], result["metrics"]) == (results[0]["uris"], results[0]["metrics"])
    assert result["verdict"] == "unchanged" and result["reason"].startswith("promoted on 20")
    assert not any("raylet" in command or "gcs_server" in command for command in commands), "and starts no Ray"


def _digests(uri: URI) -> set[str | None]:
    """Digests of what was computed; what a checkpoint says of its run beside the weights holds times."""
    files = manifest.load(uri).files
    return {file.sha256 for file in files if Path(file.path).suffix in (".parquet", ".safetensors")}


def _ray_folder(command: str) -> Path | None:
    """The private folder of the Ray whose head node `command` starts."""
    found = re.search(r"--temp-dir=(/tmp/ray-[^/ ]+)", command)
    return Path(found[1]) if found else None


def _places(folder: Path, secret: str) -> list[Path]:
    """Every file below `folder`, logs and databases included, that holds `secret`."""
    found = []
    for path in (Path(parent, name) for parent, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(FileNotFoundError):  # what runs there removes files of its own
            if stat.S_ISREG(path.lstat().st_mode) and secret.encode() in path.read_bytes():
                found.append(path)
    return found
