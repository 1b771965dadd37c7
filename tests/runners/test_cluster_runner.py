"""Jobs on a cluster: each line of a log comes once, and who may stop a job; `test_lost_head.py` has a real cluster."""

import itertools
from collections.abc import Iterator
from pathlib import Path
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

from storage.kinds import DatasetURI
from storage.uri import URI, Root
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.spec import JobSpec
from tasks.resources.needs import Limits
from tasks.runners import jobs_api
from tasks.runners.cluster_runner import ClusterRunner
from tasks.stages import Train
from tests import committed
from tests.jobs import raw

LOG = "one\ntwo\nthree\n"


class Cluster:
    """Jobs API of a cluster without nodes: a job commits its target once its log has been read to the end."""

    def __init__(self, target: URI) -> None:
        self.target = target
        self.jobs: dict[str, SimpleNamespace] = {}
        self.stopped: list[str] = []
        self.lengths: Iterator[int] = itertools.chain((0, 3, 9, 0), itertools.repeat(len(LOG)))
        """How much of a log each request returns; 0: no answer."""

    def list_jobs(self) -> list[SimpleNamespace]:
        return list(self.jobs.values())

    def get_job_info(self, name: str) -> SimpleNamespace:
        return self.jobs[name]

    def submit_job(self, *, submission_id: str, **_: Any) -> str:
        self.jobs[submission_id] = SimpleNamespace(submission_id=submission_id, status=JobStatus.RUNNING, message=None)
        return submission_id

    def stop_job(self, name: str) -> None:
        self.stopped.append(name)

    def get_job_logs(self, name: str) -> str:
        length = next(self.lengths)
        if length == len(LOG):
            committed.commit(self.target, "checkpoint")
            self.jobs[name].status = JobStatus.SUCCEEDED
        if not length:
            raise RuntimeError("the node of the driver does not answer")
        return LOG[:length]


@pytest.fixture
def stage(tmp_path: Path) -> Train:
    prepared = DatasetURI(f"{tmp_path}/datasets/prepared/x-0123456789ab")
    return raw.to_train(Root(str(tmp_path)), prepared, model="small-cnn")


@pytest.fixture
def cluster(stage: Train, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(stage.target)
    monkeypatch.setattr(jobs_api, "connect", lambda address: cluster)
    return cluster


def run(stage: Train) -> None:
    ClusterRunner("http://127.0.0.1:8265", poll_s=0.01).run(JobSpec(stage=stage, limits=Limits(stage_s=60)))


@pytest.mark.usefixtures("cluster")
def test_lines_of_a_log_come_once_even_if_some_requests_for_it_get_no_answer(
    stage: Train, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="pipeline"):
        run(stage)
    assert [line for line in caplog.messages if line in LOG.splitlines()] == ["one", "two", "three"]


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("error", "is_cancelled", "is_stopped"),
    [
        (TerminationSignal(signal=15), False, False),
        (TerminationSignal(signal=15), True, True),
        (KeyboardInterrupt(), False, True),
        (DeadlineExceeded(), False, True),
    ],
    ids=["evicted", "canceled", "Ctrl-C", "deadline"],
)
def test_a_job_is_stopped_by_a_person_or_its_deadline_and_not_when_the_process_of_its_run_has_to_end(
    cluster: Cluster,
    stage: Train,
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
            run(stage)

    trains()
    (job,) = cluster.jobs
    assert cluster.stopped == [job] * is_stopped
    message = f"job {job} continues: the same request attaches to it, `ray job stop {job}` ends it"
    assert (message in caplog.messages) is not is_stopped
