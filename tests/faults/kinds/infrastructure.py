"""Faults around the training workers. A new job resumes, within the same command."""

import signal
from typing import Any

from storage import manifest
from tests.clusters import jobs
from tests.faults.case import Case, Failed, kind
from tests.faults.harness import STAGES
from tests.faults.history import checkpoint_of, step_of


@kind("controller killed", process="tasks.jobs train")  # it controls the workers itself
@kind("local Ray killed", process="gcs_server")
def _killed(case: Case, *, process: str) -> dict[str, Any]:
    case.begin(after="prepared", workers=1)
    run = case.start()
    case.reaches(run, checkpoint_of(1), "epoch 1 is safe")
    case.kill_process(run, process)
    return case.expect_resumed_at_epoch_2(case.expect_recovery(run))


@kind("node killed")
def _node_killed(case: Case) -> dict[str, Any]:
    case.begin(after="prepared", workers=2)
    with case.two_nodes() as cluster:
        run = case.start()
        case.reaches(run, checkpoint_of(1), "epoch 1 is safe")
        cluster.kill_a_node(lambda pid, command: case.send_signal(pid, signal.SIGKILL, what=f"node: {command[:40]}"))
        cluster.add_a_node()
        return case.expect_recovery(run)


@kind("crash in Parquet writing")
def _crash_in_writing(case: Case) -> dict[str, Any]:
    after, part = case.random.choice([("raw", "/train/part-"), ("checkpoint", "/predictions/")])
    case.begin(after=after, workers=1)
    return case.expect_recovery(case.start("write", part))


@kind("crash between data and manifest", quick=True)
def _crash_before_manifest(case: Case) -> dict[str, Any]:
    stages = list(STAGES)
    stage = case.random.choice([stage for stage in stages if stage not in ("raw", "promotion")])
    case.begin(after=stages[stages.index(stage) - 1])
    return case.settle(case.start("write", case.harness.golden_path(STAGES[stage][0], "/" + manifest.NAME)))


@kind("second flow joins the first one's job on a cluster")
def _second_joins(case: Case) -> dict[str, Any]:
    case.begin(after="prepared", workers=2)  # a node has one core: one worker would sum in another order than golden
    with case.two_nodes() as cluster:
        first = case.start()
        case.reaches(first, step_of(1), "training began")
        second = case.start()
        case.once.touch()
        results = [case.expect_recovery(run) for run in (first, second)]
        trainings = [job for job in jobs(cluster.env) if job.startswith("train-")]
    if len(trainings) != 1:
        raise Failed(f"two flows made {len(trainings)} jobs: {trainings}")
    if results[0]["uris"] != results[1]["uris"]:
        raise Failed("the two came to different results")
    return results[1]
