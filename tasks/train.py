"""Train: from a prepared dataset to the checkpoint of the best epoch, as a Ray job."""

from prefect import task

from storage.uri import CheckpointURI, DatasetURI
from tasks.cluster import GRACE_S, Cluster, retry_on_fault
from tasks.jobs.spec import TrainSpec
from tasks.options import task_options
from tasks.plan import Plan
from tasks.stage import stage


@task(name="train", **task_options, **retry_on_fault)
def train(prepared: DatasetURI, plan: Plan, cluster: Cluster) -> CheckpointURI:
    """The epoch with the lowest validation loss; goes on from the newest whole checkpoint of an earlier attempt."""
    with stage("train", plan.checkpoint, deadline_s=plan.deadline_s + GRACE_S) as current:
        if not current.reused:
            scratch = plan.scratch(plan.checkpoint)
            spec = TrainSpec(
                storage=plan.root,
                deadline_s=plan.deadline_s,
                prepared=prepared,
                checkpoint=plan.checkpoint,
                runs=scratch,
                initial=plan.initial,
                recipe=plan.recipe.to_dict(),
                parameters=plan.train_parameters,
                workers=plan.workers,
                stall_s=plan.stall_s,
            )
            cluster.run("train", spec, target=plan.checkpoint, scratch=scratch)
    return plan.checkpoint
