"""Predict: apply a checkpoint to every row of a dataset, as a Ray job."""

from dataclasses import replace

from prefect import task

from storage.uri import CheckpointURI, DatasetURI, PredictionsURI
from tasks.jobs.spec import PredictSpec
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import stage
from tasks.planning.plan import Plan
from tasks.planning.predict_request import BatchRequest
from tasks.planning.result_uris import predictions_of
from tasks.resources.scaling import ANY, Needs
from tasks.runners.runner import Runner, retry_on_fault


@task(name="predict", **task_options, **retry_on_fault)
def predict(checkpoint: CheckpointURI, prepared: DatasetURI, plan: Plan, cluster: Runner) -> PredictionsURI:
    """Predict each test row of `prepared` exactly once; verify and reuse parts of an earlier attempt."""
    name = "predict" if checkpoint == plan.checkpoint else "predict with champion"
    needs = replace(plan.needs, batch_size=None)  # a batch of training does not limit prediction
    return _predict(checkpoint, prepared, plan, cluster, split="test", needs=needs, name=name)


@task(name="predict", **task_options, **retry_on_fault)
def predict_batch(request: BatchRequest, cluster: Runner) -> PredictionsURI:
    """Predict each row of any dataset of images exactly once, with or without labels."""
    return _predict(request.checkpoint, request.dataset, request, cluster, split=request.split)


def _predict(
    checkpoint: CheckpointURI,
    dataset: DatasetURI,
    asked: Plan | BatchRequest,
    cluster: Runner,
    *,
    split: str | None,
    needs: Needs = ANY,
    name: str = "predict",
) -> PredictionsURI:
    target = predictions_of(asked.root, checkpoint, dataset, split=split)
    with stage(name, target) as current:
        if not current.reused:
            spec = PredictSpec(
                storage=asked.root,
                deadline_s=asked.stage_timeout_s,
                stall_s=asked.stall_timeout_s,
                model=checkpoint,
                source=dataset,
                target=target,
                split=split,
                workers=asked.workers,
                needs=needs,
            )
            cluster.run("predict", spec)
    return target
