"""Predict: apply a checkpoint to every row of a dataset, as a Ray job."""

from prefect import task

from storage.uri import URI, CheckpointURI, DatasetURI, PredictionsURI
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import stage
from tasks.planning.plan import Timeouts
from tasks.runners.runner import Runner, retry_on_fault
from tasks.stages import PredictParameters, PredictSpec


@task(name="predict", **task_options, **retry_on_fault)
def predict(
    checkpoint: CheckpointURI,
    dataset: DatasetURI,
    predictions: PredictionsURI,
    parameters: PredictParameters,
    timeouts: Timeouts,
    runner: Runner,
    name: str = "predict",
) -> PredictionsURI:
    """Predict each row of `dataset`, or of one split, exactly once; verify and reuse parts of an earlier attempt."""
    parents: dict[str, URI] = {"checkpoint": checkpoint, "dataset": dataset}
    with stage(name, predictions, parents=parents) as current:
        if not current.reused:
            values = vars(parameters) | timeouts.of_job(predictions)
            runner.run("predict", PredictSpec(model=checkpoint, source=dataset, **values))
    return predictions
