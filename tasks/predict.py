"""Predict: apply a checkpoint to every row of a dataset, as a Ray job."""

from prefect import task

from storage.uri import CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.cluster.runner import GRACE_S, Runner, retry_on_fault
from tasks.jobs.scaling import ANY, Needs, Workers
from tasks.jobs.spec import PredictSpec
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import stage
from tasks.planning.plan import Plan
from tasks.planning.predict_request import BatchRequest
from tasks.planning.result_uris import predictions_of, scratch_of


@task(name="predict", **task_options, **retry_on_fault)
def predict(checkpoint: CheckpointURI, prepared: DatasetURI, plan: Plan, cluster: Runner) -> PredictionsURI:
    """Predict each test row of `prepared` exactly once; verify and reuse parts of an earlier attempt."""
    return predict_split(
        checkpoint,
        prepared,
        cluster,
        root=plan.root,
        split="test",
        workers=plan.workers,
        needs=plan.needs,
        deadline_s=plan.deadline_s,
        accept_mixed_numerics=plan.accept_mixed_numerics,
        name="predict" if checkpoint == plan.checkpoint else "predict with champion",
    )


@task(name="predict", **task_options, **retry_on_fault)
def predict_batch(request: BatchRequest, cluster: Runner) -> PredictionsURI:
    """Predict each row of any dataset of images exactly once, with or without labels."""
    return predict_split(
        request.checkpoint,
        request.dataset,
        cluster,
        root=request.root,
        split=request.split,
        workers=request.workers,
        deadline_s=request.deadline_s,
        accept_mixed_numerics=request.accept_mixed_numerics,
    )


def predict_split(
    checkpoint: CheckpointURI,
    dataset: DatasetURI,
    cluster: Runner,
    *,
    root: Root,
    split: str | None,
    workers: Workers,
    deadline_s: float,
    accept_mixed_numerics: bool,
    needs: Needs = ANY,
    name: str = "predict",
) -> PredictionsURI:
    """Predict one split (None: all rows) of `dataset` and return the URI of the committed predictions."""
    target = predictions_of(root, checkpoint, dataset, split=split)
    with stage(name, target, deadline_s=deadline_s + GRACE_S) as current:
        if not current.reused:
            spec = PredictSpec(
                storage=root,
                deadline_s=deadline_s,
                model=checkpoint,
                source=dataset,
                target=target,
                split=split,
                workers=workers,
                needs=needs,
                accept_mixed_numerics=accept_mixed_numerics,
            )
            cluster.run("predict", spec, target=target, scratch=scratch_of(root, target))
    return target
