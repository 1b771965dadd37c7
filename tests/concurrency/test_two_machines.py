"""Two machines that are given the same run both work; the first result counts, and nothing is lost or left behind."""

import random
from pathlib import Path

import pytest

from storage.uri import Root
from tests.concurrency import two_machines

ROUNDS = 2
"""`python -m tests.concurrency --rounds 20` plays more."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_machines_that_are_killed_come_to_one_result_and_leave_nothing_behind(root: Root, tmp_path: Path) -> None:
    for number in range(ROUNDS):
        below = Root(f"{root}-{number}")
        two_machines.play(below, tmp_path / str(number), chance=random.Random(number))
