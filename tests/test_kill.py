"""SIGKILL of a run at three moments, one after the other, and the same command again: as if nothing had happened.

`test_killed_workers.py` kills workers in place of the run, and the fault suite strikes with every kind of fault.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage import manifest
from storage.uri import URI, Root
from tests.faults.harness import raw_name, write_raw
from tests.runs import Run, await_that, find

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


def test_a_run_killed_three_times_ends_as_one_that_was_never_killed(tmp_path: Path) -> None:
    undisturbed = Run(*_arguments(tmp_path / "whole"), folder=tmp_path / "a").result()
    root = tmp_path / "root"
    arguments = _arguments(root)
    moments: dict[str, Callable[[Run], object]] = {
        "writing Parquet": lambda run: find(root, "datasets/prepared/*/train/part-*"),
        "training": lambda run: find(root, "runs/*/*/epoch-0001/checkpoint.json"),
        "predicting": lambda run: find(root, "predictions/*/test/part-*"),
    }
    for moment, reached in moments.items():
        run = Run(*arguments, folder=tmp_path / "b")
        run.kill_when(partial(reached, run))
        await_that(partial(_is_gone, run), limit_s=60)
        assert not list(root.glob("reports/*")), f"the kill while {moment} came too late"
        assert moment != "predicting" or not run.says("epoch 1/3, steps"), "training began again instead of going on"
    resumed = Run(*arguments, folder=tmp_path / "b")
    result = resumed.result()
    assert resumed.says("train reused"), "the model was trained again although its training had ended"
    assert _content(result["uris"]["checkpoint"], "weights") == _content(undisturbed["uris"]["checkpoint"], "weights")
    assert _content(result["uris"]["predictions"]) == _content(undisturbed["uris"]["predictions"])
    assert result["metrics"] == undisturbed["metrics"]
    for uri in filter(None, result["uris"].values()):
        manifest.verify(URI(uri))


def _arguments(root: Path) -> list[str]:
    """The command line of a run on 2,003 digits in `root`."""
    write_raw(Root(str(root)))
    settings = [word for setting in ("precision=fp32", "epochs=3", "accuracy_floor=0") for word in ("--set", setting)]
    data = root / "datasets" / "raw" / raw_name()
    return ["--recipe", "mnist-sample-resnet18", *settings, "--json", "--data", str(data), "--storage", str(root)]


def _is_gone(run: Run) -> bool:
    return not run.processes()


def _content(uri: str, prefix: str = "") -> list[Any]:
    """Paths and digests of the committed files whose names begin with `prefix`."""
    listed = json.loads((Path(uri) / "_manifest.json").read_text())["files"]
    return [(file["path"], file["sha256"], file["rows"]) for file in listed if file["path"].startswith(prefix)]
