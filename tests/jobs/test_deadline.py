"""Deadlines interrupt blocking calls."""

import threading
import time

import pytest

from tasks.jobs.deadline import DeadlineExceeded, deadline, run_in_thread


def test_a_later_deadline_does_not_put_off_the_one_around_it() -> None:
    with (
        pytest.raises(DeadlineExceeded, match="not done within 0 s; use a longer --stage-t"),
        deadline(0.2),
        deadline(60),
    ):
        time.sleep(5)
    with pytest.raises(DeadlineExceeded, match="not done within 0 s"), deadline(60), deadline(0.2):
        time.sleep(5)


def test_a_deadline_that_somebody_swallowed_comes_again() -> None:
    swallowed = 0
    with pytest.raises(DeadlineExceeded), deadline(0.05, again_s=0.05):
        try:
            time.sleep(60)
        except Exception:
            swallowed += 1
        time.sleep(60)
    assert swallowed == 1


def test_a_deadline_ends_work_that_is_done_aside() -> None:
    ended = threading.Event()
    with pytest.raises(DeadlineExceeded), deadline(0.1):
        run_in_thread(lambda: ended.wait(60), give_up=ended.set)
    assert ended.is_set()
