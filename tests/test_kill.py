"""SIGKILL of a run at three moments, one after the other, and the same command again: as if nothing had happened.

The fault suite does as much with two workers.
"""

import json
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


def _is_gone(run: Run) -> bool:
    return not run.processes()


def _content(uri: str, prefix: str = "") -> list[Any]:
    """Paths and digests of the committed files whose names begin with `prefix`."""
    listed = json.loads((Path(uri) / "_manifest.json").read_text())["files"]
    return [(file["path"], file["sha256"], file["rows"]) for file in listed if file["path"].startswith(prefix)]
