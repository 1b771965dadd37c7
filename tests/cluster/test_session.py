"""Which Ray the session of a run takes, and how long it waits between two looks at a job."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient

from storage.uri import URI, Root
from tasks.cluster.child import Child
from tasks.cluster.job_log import Follower
from tasks.cluster.ray_jobs import RayJobs
from tasks.cluster.session import LockingRunner, session, starting
from tasks.jobs.spec import ENDED, JobSpec


def test_the_first_session_takes_the_ray_that_is_on_its_way_and_any_other_starts_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[RayJobs] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(RayJobs, "_start", lambda cluster: started.append(cluster))
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
    monkeypatch.setattr("tasks.cluster.ray_jobs._LONGEST_LOCAL_POLL_S", 600.0)
    cluster = RayJobs(wanted=False)
    cluster._child, cluster._logs = child, tmp_path
    (tmp_path / "job-driver-train-1.log").write_text(f"at work\n{ENDED}\n")
    cluster._wait("train-1", Follower("train"), 600.0)


@pytest.mark.usefixtures("prefect_server")
def test_a_link_that_the_server_does_not_take_never_fails_the_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(SyncPrefectClient, "create_artifact", fails)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")

    @flow
    def trains() -> str:
        RayJobs(wanted=False)._link("train", "train-1")
        return "it goes on"

    assert trains() == "it goes on"
    assert "the link to the Ray dashboard cannot be shown: connection refused" in caplog.text


def test_a_job_whose_link_is_interrupted_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    stopped: list[str] = []

    class Client:
        def list_jobs(self) -> list[Any]:
            return []

        def stop_job(self, job: str) -> None:
            stopped.append(job)

    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    monkeypatch.setattr(RayJobs, "_submit", lambda *_: "train-1")
    monkeypatch.setattr(RayJobs, "_link", interrupted)
    cluster = RayJobs(wanted=False)
    cluster._client = cast(Any, Client())
    with pytest.raises(KeyboardInterrupt):
        cluster.run(
            "train", JobSpec(storage=Root(str(tmp_path)), target=URI(f"{tmp_path}/x-0123456789ab"), deadline_s=1)
        )
    assert stopped == ["train-1"]
