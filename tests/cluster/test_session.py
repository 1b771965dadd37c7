"""Which Ray the session of a run takes, and how long it waits between two looks at a job."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from storage.uri import Root
from tasks.cluster.child import Child
from tasks.cluster.job_log import Follower
from tasks.cluster.local_runner import LocalRunner
from tasks.cluster.session import LockingRunner, session, starting
from tasks.jobs.spec import ENDED


def test_the_first_session_takes_the_ray_that_is_on_its_way_and_any_other_starts_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[LocalRunner] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(LocalRunner, "_start", lambda cluster: started.append(cluster))
    root = Root(str(tmp_path))
    with starting(wanted=True):
        assert len(started) == 1
        with session(root, wanted=False, workers=None):
            assert len(started) == 1
        for number in (1, 2):
            with session(root, wanted=True, workers=None) as cluster:
                assert len(started) == number and cast(LockingRunner, cluster).runner is started[-1]
    with starting(wanted=False), session(root, wanted=True, workers=None) as cluster:
        assert len(started) == 3 and cast(LockingRunner, cluster).runner is started[-1]


@pytest.fixture
def child() -> Iterator[Child]:
    """What stands for a local Ray that is up."""
    child = Child(["sleep", "600"], env=os.environ)
    yield child
    child.end()


@pytest.mark.timeout(60)
def test_a_local_job_whose_work_is_over_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: Child
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("tasks.cluster.local_runner._LONGEST_POLL_S", 600.0)
    cluster = LocalRunner(wanted=False)
    cluster._child, cluster._logs = child, tmp_path
    (tmp_path / "job-driver-train-1.log").write_text(f"at work\n{ENDED}\n")
    cluster._wait("train-1", Follower("train"), 600.0)
