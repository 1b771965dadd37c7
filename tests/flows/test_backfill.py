"""A backfill runs the flow on each raw dataset of a source, oldest first, and changes no champion."""

import os
from pathlib import Path
from typing import Any

import pytest

from flows.cli import app, start
from storage import manifest
from storage.uri import Root
from tests import committed

_NAMES = ["mnist-00000000000b", "mnist-00000000000c", "mnist-00000000000a"]
"""Oldest first, which is not their order by name."""


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """Three versions of `mnist`, copied youngest first, beside one of another source and one that is not committed."""
    root = Root(str(tmp_path / "root"))
    for age, name in enumerate([*_NAMES, "mnist-sample-00000000000f"]):
        uri = root.child(f"datasets/raw/{name}")
        committed.commit(uri, "raw")
        os.utime(uri.child(manifest.NAME), (2e9 - age, 2e9 - age))
    (tmp_path / "root/datasets/raw/mnist-00000000000e/train").mkdir(parents=True)
    return root


@pytest.mark.parametrize(
    ("words", "names", "recipe"),
    [
        (["--recipe", "mnist-resnet18"], _NAMES, "mnist-resnet18"),
        ([f"/copied/datasets/raw/{_NAMES[2]}/", _NAMES[0]], [_NAMES[0], _NAMES[2]], "images-finetune"),
        ([], ["mnist-sample-00000000000f"], "mnist-sample-resnet18"),
    ],
)
def test_each_version_is_run_oldest_first_and_only_judged_and_one_that_fails_does_not_stop_the_rest(
    root: Root, monkeypatch: pytest.MonkeyPatch, words: list[str], names: list[str], recipe: str
) -> None:
    runs: list[Any] = []

    def run(options: Any) -> int:
        runs.append(options)
        return int(options.data.endswith(names[0]))

    monkeypatch.setattr(start, "run", run)
    words = [*words, "--storage", root, "--workers", "0"]
    assert app.main(words=["backfill", *words]) == 1
    assert [(run.data, run.recipe, run.judge_only, run.workers) for run in runs] == [
        (root.child(f"datasets/raw/{name}"), recipe, True, 0) for name in names
    ]
