"""Which Ray the session of a run takes."""

from typing import cast

import pytest

from tasks.runners.local_runner import LocalRunner
from tasks.runners.session import LockingRunner, session, starting


def test_sessions_take_the_ray_that_is_on_its_way_or_start_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[LocalRunner] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(LocalRunner, "_start", lambda cluster: started.append(cluster))
    with starting(wanted=True), session(wanted=True, workers=None) as cluster:
        assert [cast(LockingRunner, cluster).runner] == started
    with session(wanted=True, workers=None) as cluster:
        assert cast(LockingRunner, cluster).runner is started[1]
