"""What the report says of a result that it was made from."""

from pathlib import Path
from typing import Any

import pytest

from storage import manifest
from storage.uri import DatasetURI
from tasks.report import _facts

_TITLE = "test rows that also stand in train"


@pytest.mark.parametrize(
    ("statistics", "expected"),
    [
        ({}, {}),
        ({"test_rows_in_train": {"count": 0, "ids": []}}, {}),
        ({"test_rows_in_train": {"count": 2, "ids": [3, 5]}}, {_TITLE: "2: ids 3, 5"}),
        ({"test_rows_in_train": {"count": 1234, "ids": [3, 5]}}, {_TITLE: "1,234: ids 3, 5, ..."}),
        (
            {"quarantined": {"id is missing": 2, "id is negative": 1}},
            {"quarantined": "2: id is missing\n1: id is negative"},
        ),
    ],
)
def test_what_is_wrong_with_the_rows_is_among_the_facts(
    tmp_path: Path, statistics: dict[str, Any], expected: dict[str, str]
) -> None:
    uri = DatasetURI(f"{tmp_path}/prepared-0123456789ab")
    made = manifest.commit(uri, kind="prepared", parents={}, parameters={}, listed=[], statistics=statistics)
    assert dict(_facts(made)) == expected
