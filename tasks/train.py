"""Train: fit a model to a prepared dataset and keep the best epoch's checkpoint, as a Ray job."""

from prefect import task

from storage.uri import CheckpointURI, DatasetURI
from tasks.jobs.spec import TrainSpec
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import stage
from tasks.planning.plan import Plan
from tasks.runners.runner import Runner, retry_on_fault


@task(name="train", **task_options, **retry_on_fault)
def train(prepared: DatasetURI, plan: Plan, cluster: Runner) -> CheckpointURI:
    """Train and keep the epoch with the lowest validation loss; resume from the newest complete checkpoint."""
    with stage("train", plan.checkpoint) as current:
        if not current.reused:
            spec = TrainSpec(
                storage=plan.root,
                deadline_s=plan.stage_timeout_s,
                source=prepared,
                target=plan.checkpoint,
                initial=plan.initial,
                recipe=plan.recipe,
                parameters=plan.train_parameters,
                workers=plan.workers,
                stall_s=plan.stall_timeout_s,
            )
            cluster.run("train", spec)
    return plan.checkpoint
