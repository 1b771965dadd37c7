"""Problems of the data, as the report, its banner and the terminal's summary state them."""

from pathlib import Path
from typing import Any

import pytest

from storage.uri import URI
from tasks.jobs.preprocess.data_problems import find_data_problems
from tests import committed

_BALANCED = {split: {"cat": 100, "dog": 60} for split in ("train", "validation", "test")}
_LEFT_OUT = {"reason": "not images", "count": 3, "first": ["a.txt", "b.txt"]}
_SYSTEM_FILES = {"reason": "system files of Windows", "count": 1, "first": ["Thumbs.db"]}
_UNREADABLE = {"quarantined": {"image could not be read": 3}, "quarantined_files": ["a.png (truncated)"]}
_UNBALANCED = _BALANCED | {"train": {"cat": 240, "dog": 60}}
_INCOMPLETE = _BALANCED | {"test": {"cat": 0, "dog": 6}}


@pytest.mark.parametrize(
    ("kind", "statistics", "stated"),
    [
        ("raw", {"left_out": [_LEFT_OUT]}, "3 files left out (not images): a.txt, b.txt, ..."),
        ("raw", {"left_out": [_SYSTEM_FILES]}, "minor: 1 file left out (system files of Windows): Thumbs.db"),
        ("prepared", _UNREADABLE, "3 rows excluded (image could not be read: 3): a.png (truncated)"),
        (
            "prepared",
            {"test_rows_in_train": {"count": 1234, "ids": [3, 5]}},
            "1,234 test rows also in train or validation: the test accuracy is too good: id 3, id 5, ...",
        ),
        (
            "prepared",
            {"class_counts": _UNBALANCED},
            "unbalanced classes: 240 training rows of cat, 60 of dog; unless class_weights=none, they count the same",
        ),
        ("prepared", {"class_counts": _INCOMPLETE}, "classes without test rows: cat"),
        ("prepared", {"test_rows_in_train": {"count": 0, "ids": []}}, ""),
    ],
)
def test_each_problem_is_stated_once_with_its_files_and_what_needs_no_action_is_minor(
    tmp_path: Path, kind: str, statistics: dict[str, Any], stated: str
) -> None:
    recorded: dict[str, dict[str, Any]] = {"raw": {}, "prepared": {"class_counts": _BALANCED}}
    recorded[kind] |= statistics
    raw, prepared = (
        committed.commit(URI(f"{tmp_path}/{kind}-0123456789ab"), kind, **fields) for kind, fields in recorded.items()
    )
    problems = find_data_problems(raw, prepared, None)
    assert "\n".join(f"{'minor: ' * problem.is_minor}{problem}" for problem in problems) == stated
