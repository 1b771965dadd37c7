"""Problems of the data, as the report, its banner and the terminal's summary state them."""

from pathlib import Path
from typing import Any

import pytest

from storage import manifest
from storage.manifest import Manifest
from storage.uri import URI
from tasks.jobs.preprocess.data_problems import find_data_problems
from tests import committed

_BALANCED = {split: {"cat": 100, "dog": 60} for split in ("train", "validation", "test")}


def _committed(folder: Path, kind: str, statistics: dict[str, Any]) -> Manifest:
    uri = URI(f"{folder}/{kind}-0123456789ab")
    committed.commit(uri, kind, **statistics)
    return manifest.load(uri)


@pytest.mark.parametrize(
    ("statistics", "summary", "details", "is_minor"),
    [
        (
            {"raw": {"left_out": [{"reason": "not images", "count": 3, "first": ["a.txt", "b.txt"]}]}},
            "3 files left out (not images)",
            ("a.txt", "b.txt", "..."),
            False,
        ),
        (
            {"raw": {"left_out": [{"reason": "system files of Windows", "count": 1, "first": ["Thumbs.db"]}]}},
            "1 file left out (system files of Windows)",
            ("Thumbs.db",),
            True,
        ),
        (
            {"prepared": {"quarantined": {"image could not be read": 3}, "quarantined_files": ["a.png (truncated)"]}},
            "3 rows excluded (image could not be read: 3)",
            ("a.png (truncated)",),
            False,
        ),
        (
            {"prepared": {"test_rows_in_train": {"count": 1234, "ids": [3, 5]}}},
            "1,234 test rows also in train or validation: the test accuracy is too good",
            ("id 3", "id 5", "..."),
            False,
        ),
        (
            {"prepared": {"class_counts": _BALANCED | {"train": {"cat": 240, "dog": 60}}}},
            "unbalanced classes: 240 training rows of cat, 60 of dog; unless class_weights=none, they count alike",
            (),
            False,
        ),
        (
            {"prepared": {"class_counts": _BALANCED | {"test": {"cat": 0, "dog": 6}}}},
            "classes without test rows: cat",
            (),
            False,
        ),
        ({"prepared": {"test_rows_in_train": {"count": 0, "ids": []}}}, None, (), False),
    ],
)
def test_each_problem_is_stated_once_with_its_files_and_what_needs_no_action_is_minor(
    tmp_path: Path,
    statistics: dict[str, dict[str, Any]],
    summary: str | None,
    details: tuple[str, ...],
    is_minor: bool,
) -> None:
    raw = _committed(tmp_path, "raw", statistics.get("raw", {}))
    prepared = _committed(tmp_path, "prepared", {"class_counts": _BALANCED} | statistics.get("prepared", {}))
    problems = [(problem.summary, problem.details, problem.is_minor) for problem in find_data_problems(raw, prepared)]
    assert problems == ([(summary, details, is_minor)] if summary else [])
