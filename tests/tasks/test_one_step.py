"""Each task alone, from URIs and a recipe, as a notebook calls it, and each stage of the plan."""

import re
from pathlib import Path
from typing import Any

import pytest

from storage import manifest
from storage.uri import Root
from tasks.runners.runner import run_once
from tests.runs import CHECKOUT

PAGE = (CHECKOUT / "docs/python.md").read_text()
_COMMANDS, CALLS, PRINT, PLAN = re.findall(r"```\w+\n(.*?)```", PAGE, re.DOTALL)
QUICK = ('"mnist-sample-resnet18")', '"mnist-sample-resnet18"), {"model": "small-cnn", "epochs": 1})')
"""The recipe in the page's calls, and another that takes seconds."""


@pytest.fixture
def names(root: Root, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the page's calls define, with another root and a small model."""
    monkeypatch.chdir(tmp_path)
    calls = CALLS.replace("/tmp/notebook", root).replace("recipes.load", "recipes.override(recipes.load")
    defined: dict[str, Any] = {}
    exec(calls.replace(*QUICK), defined)
    return defined


@pytest.mark.slow
def test_each_task_runs_alone_and_each_stage_of_the_plan_finds_its_result(root: Root, names: dict[str, Any]) -> None:
    results = [names[name] for name in ("files", "raw", "prepared", "checkpoint", "predictions", "evaluation")]
    assert all(map(manifest.is_committed, [*results, names["page"]]))
    assert names["decision"].challenger == names["checkpoint"]
    exec(PRINT.partition("\n\n")[0], names)
    plan = names["make_plan"](storage=root, recipe=names["recipe"])
    assert [stage.target for stage in plan.stages] == results
    assert run_once(plan.train, names["runner"]) == names["checkpoint"]


def test_page_shows_the_plan_as_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(CALLS.partition("\n\n")[0] + "\n" + PRINT.replace("/tmp/notebook", str(tmp_path)), {})
    shown, printed = (re.sub(r"[0-9a-f]{12}\b", "...", text) for text in (PLAN, capsys.readouterr().out))
    assert shown.replace("/tmp/notebook", str(tmp_path)) == printed
