"""Which Ray the session of a run takes."""

from pathlib import Path
from typing import cast

import pytest

from tasks.runners.local_runner import LocalRunner
from tasks.runners.session import LockingRunner, session, starting


def test_the_first_session_takes_the_ray_that_is_on_its_way_and_any_other_starts_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[LocalRunner] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(LocalRunner, "_start", lambda cluster: started.append(cluster))
    with starting(wanted=True):
        assert len(started) == 1
        with session(wanted=False, workers=None):
            assert len(started) == 1
        for number in (1, 2):
            with session(wanted=True, workers=None) as cluster:
                assert len(started) == number and cast(LockingRunner, cluster).runner is started[-1]
    with starting(wanted=False), session(wanted=True, workers=None) as cluster:
        assert len(started) == 3 and cast(LockingRunner, cluster).runner is started[-1]
