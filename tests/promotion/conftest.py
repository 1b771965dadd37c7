"""Sixty test rows, on which models compete."""

from pathlib import Path

import pytest

from tests.promotion.contest import Contest


@pytest.fixture
def contest(tmp_path: Path) -> Contest:
    return Contest(tmp_path)
