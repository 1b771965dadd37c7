"""Preprocess: from a raw dataset to one that is checked, split and shuffled, as a Ray job."""

from prefect import task

from storage.uri import DatasetURI
from tasks.cluster import GRACE_S, Cluster, retry_on_fault
from tasks.jobs.spec import PreprocessSpec
from tasks.options import task_options
from tasks.plan import Plan
from tasks.stage import stage


@task(name="preprocess", **task_options, **retry_on_fault)
def preprocess(raw: DatasetURI, plan: Plan, cluster: Cluster) -> DatasetURI:
    """Every usable row of `raw` once, in a train, validation or test split; what is unusable counted and listed."""
    with stage("preprocess", plan.prepared, deadline_s=plan.deadline_s + GRACE_S) as current:
        if not current.reused:
            spec = PreprocessSpec(
                storage=plan.root,
                deadline_s=plan.deadline_s,
                raw=raw,
                prepared=plan.prepared,
                parameters=plan.preprocess_parameters,
            )
            cluster.run("preprocess", spec, target=plan.prepared, scratch=plan.scratch(plan.prepared))
    return plan.prepared
