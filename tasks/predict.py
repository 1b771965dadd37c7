"""Predict: from a checkpoint and a dataset to one prediction for every row, as a Ray job."""

from prefect import task

from storage.uri import CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.batch import BatchRequest
from tasks.cluster import GRACE_S, Cluster, retry_on_fault
from tasks.jobs.scale import ANY, Needs, Workers
from tasks.jobs.spec import PredictSpec
from tasks.options import task_options
from tasks.plan import Plan, predictions_of, scratch_of
from tasks.stage import stage


@task(name="predict", **task_options, **retry_on_fault)
def predict(checkpoint: CheckpointURI, prepared: DatasetURI, plan: Plan, cluster: Cluster) -> PredictionsURI:
    """Exactly one row per row of the test split of `prepared`; parts of an earlier attempt are checked and used."""
    return predict_split(
        checkpoint,
        prepared,
        cluster,
        root=plan.root,
        split="test",
        workers=plan.workers,
        needs=plan.needs,
        deadline_s=plan.deadline_s,
        name="predict" if checkpoint == plan.checkpoint else "predict with champion",
    )


@task(name="predict", **task_options, **retry_on_fault)
def predict_batch(request: BatchRequest, cluster: Cluster) -> PredictionsURI:
    """Exactly one row per row of any dataset of images, with labels or without."""
    return predict_split(
        request.checkpoint,
        request.dataset,
        cluster,
        root=request.root,
        split=request.split,
        workers=request.workers,
        deadline_s=request.deadline_s,
    )


def predict_split(
    checkpoint: CheckpointURI,
    dataset: DatasetURI,
    cluster: Cluster,
    *,
    root: Root,
    split: str | None,
    workers: Workers,
    deadline_s: float,
    needs: Needs = ANY,
    name: str = "predict",
) -> PredictionsURI:
    """Where the predictions of one split (none: all) of `dataset` lie, once they are committed."""
    target = predictions_of(root, checkpoint, dataset, split=split)
    with stage(name, target, deadline_s=deadline_s + GRACE_S) as current:
        if not current.reused:
            spec = PredictSpec(
                storage=root,
                deadline_s=deadline_s,
                checkpoint=checkpoint,
                dataset=dataset,
                predictions=target,
                split=split,
                workers=workers,
                needs=needs,
            )
            cluster.run("predict", spec, target=target, scratch=scratch_of(root, target))
    return target
