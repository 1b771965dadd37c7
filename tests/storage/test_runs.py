"""`ls runs` as a user sees it: one row a run, as a table and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from storage import files, manifest
from storage.uri import URI, Root
from tests import documented
from tests.report_page.finished_runs import commit_run
from tests.storage.conftest import Ask


def documents(ask: Ask, *words: str) -> list[dict[str, Any]]:
    answer = ask(*words, "--json")
    assert (answer.code, answer.err) == (0, [])
    rows: list[dict[str, Any]] = json.loads("\n".join(answer.out))
    return rows


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A root on a disk."""
    return Root(f"{tmp_path}/root")


@pytest.fixture
def three(root: Root) -> list[URI]:
    """Reports of three runs, of which the second is the champion and the first was."""
    runs: list[tuple[float, dict[str, Any]]] = [(0.95, {}), (0.98, {"epochs": 5}), (0.9, {"seed": 7, "epochs": 9})]
    return [
        commit_run(root, number, accuracy=accuracy, changes=changes) for number, (accuracy, changes) in enumerate(runs)
    ]


def test_runs_have_their_changes_metrics_decision_and_times(root: Root, three: list[URI], ask: Ask) -> None:
    rows = documents(ask, "ls", "runs", "--storage", root)
    assert [row["uri"] for row in rows] == three
    assert rows[0].keys() == documented.keys("One run of `ls runs`")
    assert [row["changes"] for row in rows] == [{}, {"epochs": 5}, {"seed": 7, "epochs": 9}]
    assert [(row["test_accuracy"], row["promoted"], row["champion"]) for row in rows] == [
        (0.95, True, False),
        (0.98, True, True),
        (0.9, False, False),
    ]
    assert {(row["recipe"], row["registered_model"]) for row in rows} == {("digits-resnet18", "digits")}
    assert [row["seconds"] for row in rows] == [75, 76, 77]
    answer = ask("ls", "runs", "--storage", root)
    header = "created registered model recipe changed accuracy balanced macro F1 seconds mark run"
    assert (answer.code, " ".join(answer.out[0].split())) == (0, header)
    assert answer.out[2].split()[2:] == [
        *("digits", "digits-resnet18", "epochs=5", "0.9800", "0.9800", "0.9700", "76.0", "champion", three[1])
    ]


def test_damaged_report_and_registry_are_named_and_the_rest_is_listed(root: Root, three: list[URI], ask: Ask) -> None:
    files.put(three[0].child(manifest.NAME), b"garbage")
    files.put(root.child("registry/digits/000003.json"), b"garbage")
    answer = ask("ls", "runs", "--storage", root)
    assert answer.code == 1 and [line.split()[-1] for line in answer.out[1:]] == three[1:]
    told = str(answer.err)
    assert f"{three[0]}/_manifest.json cannot be read" in told and "000003.json cannot be read" in told
