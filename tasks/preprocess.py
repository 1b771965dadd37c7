"""Preprocess: check, split and shuffle a raw dataset, as a Ray job."""

from prefect import task

from storage.uri import DatasetURI
from tasks.jobs.spec import PreprocessSpec
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import stage
from tasks.planning.plan import Plan
from tasks.runners.runner import Runner, retry_on_fault


@task(name="preprocess", **task_options, **retry_on_fault)
def preprocess(raw: DatasetURI, plan: Plan, cluster: Runner) -> DatasetURI:
    """Write each usable row of `raw` once to a train, validation or test split; count and list unusable rows."""
    with stage("preprocess", plan.prepared) as current:
        if not current.reused:
            spec = PreprocessSpec(
                storage=plan.root,
                deadline_s=plan.stage_timeout_s,
                stall_s=plan.stall_timeout_s,
                source=raw,
                target=plan.prepared,
                parameters=plan.preprocess_parameters,
            )
            cluster.run("preprocess", spec)
    return plan.prepared
