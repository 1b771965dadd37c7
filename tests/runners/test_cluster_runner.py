"""Jobs on a cluster: a lost head fails a try, each line of a log comes once, and who may stop a job."""

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Cancelling
from ray.job_submission import JobStatus

from storage import manifest
from storage.uri import URI, Root
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.errors import JobFailed, JobRefused
from tasks.runners import cluster_runner, jobs_api
from tasks.runners.cluster_runner import ClusterRunner
from tasks.stages import JobSpec

ADDRESS = "http://127.0.0.1:8265"
LOG = "one\ntwo\nthree\n"


class Cluster:
    """Jobs API of a cluster without nodes: a job succeeds once its log has been read to the end."""

    def __init__(self) -> None:
        self.jobs: dict[str, SimpleNamespace] = {}
        self.stopped: list[str] = []
        self.is_away = False
        """True while no question gets an answer."""
        self.lengths: Iterator[int] = itertools.chain((0, 3, 9, 0), itertools.repeat(len(LOG)))
        """How much of a log each question returns; 0: no answer."""
        self.at_end: Callable[[], object] = lambda: None
        """What happens when a log has been read."""

    def list_jobs(self) -> list[SimpleNamespace]:
        if self.is_away:
            raise ConnectionError("connection refused")
        return list(self.jobs.values())

    def get_job_info(self, name: str) -> SimpleNamespace:
        for job in self.list_jobs():
            if job.submission_id == name:
                return job
        raise RuntimeError(f"no job {name}")

    def submit_job(self, *, submission_id: str, **_: Any) -> str:
        self.jobs[submission_id] = SimpleNamespace(submission_id=submission_id, status=JobStatus.RUNNING, message=None)
        return submission_id

    def stop_job(self, name: str) -> None:
        self.stopped.append(name)

    def get_job_logs(self, name: str) -> str:
        length = next(self.lengths)
        if length == len(LOG):
            self.at_end()
            if name in self.jobs and not self.is_away:
                self.jobs[name].status = JobStatus.SUCCEEDED
        if not length:
            raise RuntimeError("the node of the driver does not answer")
        return LOG[:length]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster on which every job has committed its target once it has succeeded."""
    cluster = Cluster()
    monkeypatch.setattr(jobs_api, "connect", lambda address: cluster)
    monkeypatch.setattr(
        manifest, "is_committed", lambda uri: any(job.status.is_terminal() for job in cluster.jobs.values())
    )
    monkeypatch.setattr(cluster_runner, "_POLL_S", 0.01)
    return cluster


@pytest.fixture
def spec(tmp_path: Any) -> JobSpec:
    return JobSpec(storage=Root(str(tmp_path)), target=URI(f"{tmp_path}/checkpoints/x-0123456789ab"), deadline_s=60)


def test_lines_of_a_log_come_once_even_if_some_questions_about_it_get_no_answer(
    cluster: Cluster, spec: JobSpec, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="pipeline"):
        ClusterRunner(ADDRESS).run("train", spec)
    assert [line for line in caplog.messages if line in LOG.splitlines()] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("is_restarted", "says"),
    [(False, f"Ray's head at {ADDRESS}: connection refused"), (True, f"Ray's head at {ADDRESS}: no job train-")],
)
def test_a_lost_head_fails_the_try_and_the_next_attaches_to_the_job_or_submits_another(
    cluster: Cluster, spec: JobSpec, is_restarted: bool, says: str
) -> None:
    def be_lost() -> None:
        cluster.is_away = not is_restarted
        if is_restarted:
            cluster.jobs.clear()
        cluster.at_end = lambda: None

    runner, cluster.at_end = ClusterRunner(ADDRESS), be_lost
    with pytest.raises(JobFailed, match=says) as failed:
        runner.run("train", spec)
    assert not isinstance(failed.value, JobRefused)
    cluster.is_away = False
    runner.run("train", spec)
    assert len(cluster.jobs) == 1


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("error", "is_cancelled", "is_stopped"),
    [
        (TerminationSignal(signal=15), False, False),
        (TerminationSignal(signal=15), True, True),
        (KeyboardInterrupt(), False, True),
        (DeadlineExceeded(), False, True),
    ],
    ids=["evicted", "cancelled", "Ctrl-C", "deadline"],
)
def test_a_job_is_stopped_by_a_person_or_its_deadline_and_not_when_the_process_of_its_run_has_to_end(
    cluster: Cluster,
    spec: JobSpec,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    is_cancelled: bool,
    is_stopped: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    submit = cluster.submit_job

    def interrupted(**options: Any) -> None:
        submit(**options)
        if is_cancelled:
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(UUID(str(flow_run.id)), Cancelling(), force=True)
        raise error

    @flow
    def trains() -> None:
        monkeypatch.setattr(cluster, "submit_job", interrupted)
        with pytest.raises(type(error)):
            ClusterRunner(ADDRESS).run("train", spec)

    trains()
    (job,) = cluster.jobs
    assert cluster.stopped == [job] * is_stopped
    text = f"job {job} goes on: the same request attaches to it, `ray job stop {job}` ends it"
    assert (text in caplog.messages) is not is_stopped
