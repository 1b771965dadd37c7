"""SIGKILL of a run at three moments, one after the other, and the same command again: as if nothing had happened.

The fault suite does as much with two workers.
"""

import json
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage import manifest
from storage.uri import URI
from tests.runs import Run, await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


def test_a_run_killed_three_times_ends_as_one_that_was_never_killed(tmp_path: Path) -> None:
    arguments = ["--source", "sample", "--set", "precision=fp32", "--set", "epochs=2", "--json", "--storage"]
    undisturbed = Run(*arguments, str(tmp_path / "whole"), folder=tmp_path / "a").result()
    root = tmp_path / "root"
    moments: dict[str, Callable[[Run], object]] = {
        "writing Parquet": lambda run: any(root.glob("datasets/prepared/*/train/part-*")),
        "training": lambda run: run.says("epoch 2/2"),
        "predicting": lambda run: any(root.glob("predictions/*/test/part-*")),
    }
    for moment, reached in moments.items():
        run = Run(*arguments, str(root), folder=tmp_path / "b")
        run.kill_when(partial(reached, run))
        await_that(partial(_is_gone, run), limit_s=60)
        assert not list(root.glob("reports/*")), f"the kill while {moment} came too late"
        assert moment != "predicting" or not run.says("epoch 1/2"), "training began again instead of going on"
    resumed = Run(*arguments, str(root), folder=tmp_path / "b")
    result = resumed.result()
    assert resumed.says("train reused"), "the model was trained again although its training had ended"
    assert _content(result["uris"]["checkpoint"], "weights") == _content(undisturbed["uris"]["checkpoint"], "weights")
    assert _content(result["uris"]["predictions"]) == _content(undisturbed["uris"]["predictions"])
    assert result["metrics"] == undisturbed["metrics"]
    for uri in result["uris"].values():
        manifest.verify(URI(uri))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs share raw and prepared data."""
    return tmp_path_factory.mktemp("loaders")


@pytest.mark.parametrize(("loader", "workers"), [("resident", 3), ("ray-data", 1), ("ray-data", 2), ("ray-data", 3)])
def test_a_training_whose_worker_is_killed_ends_with_the_weights_of_an_undisturbed_one(
    folder: Path, loader: str, workers: int
) -> None:
    arguments = ["--source", "sample", "--json", "--storage", str(folder / "root"), "--workers", str(workers)]
    settings = ("model=small-cnn", "precision=fp32", "epochs=3", "accuracy_floor=0", f"loader={loader}")
    arguments += [word for setting in settings for word in ("--set", setting)]
    checkpoint = Run(*arguments, folder=folder).result()["uris"]["checkpoint"]
    undisturbed = _content(checkpoint, "weights")
    shutil.rmtree(checkpoint)

    run = Run(*arguments, folder=folder)
    await_that(lambda: any(folder.glob("root/runs/*/*/epoch-0001/checkpoint.json")) or run.process.poll() is not None)
    struck = [pid for pid, command in run.processes().items() if "ray::RayTrainWorker" in command]
    os.kill(struck[-1], signal.SIGKILL)
    assert not Path(checkpoint, manifest.NAME).exists(), "the kill came too late"
    assert run.result()["uris"]["checkpoint"] == checkpoint
    assert run.says("going on from the newest checkpoint")
    assert _content(checkpoint, "weights") == undisturbed


def _is_gone(run: Run) -> bool:
    return not run.processes()


def _content(uri: str, prefix: str = "") -> list[Any]:
    """Paths and digests of the committed files whose names begin with `prefix`."""
    listed = json.loads((Path(uri) / "_manifest.json").read_text())["files"]
    return [(file["path"], file["sha256"], file["rows"]) for file in listed if file["path"].startswith(prefix)]
