"""Predict: apply a checkpoint to every row of a dataset, as a Ray job."""

from prefect import task

from storage.kinds import CheckpointURI, DatasetURI, EmbeddingsURI, PredictionsURI
from storage.uri import Root
from tasks.orchestration.prefect_options import task_options
from tasks.resources.needs import ANY, Limits, Needs
from tasks.runners.runner import Runner, retry_on_fault, run_once
from tasks.stages import Predict


@task(name="predict", **task_options, **retry_on_fault)
def predict(
    checkpoint: CheckpointURI,
    dataset: DatasetURI,
    runner: Runner,
    *,
    split: str | None = None,
    embeddings: EmbeddingsURI | None = None,
    root: Root | None = None,
    needs: Needs = ANY,
    limits: Limits = Limits(),
    name: str = "predict",
) -> PredictionsURI:
    """Predict each row of `dataset`, or of one split, exactly once; verify and reuse parts of an earlier attempt.

    `dataset` is raw or prepared, with images of the model's shape. `name` is the stage's in logs, if a run predicts
    twice. The other arguments are the fields of `Predict`.
    """
    stage = Predict(root=root, checkpoint=checkpoint, dataset=dataset, split=split, embeddings=embeddings)
    return run_once(stage, runner, limits=limits, needs=needs, name=name)
