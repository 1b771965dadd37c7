"""Train: fit a model to a prepared dataset and keep the best epoch's checkpoint, as a Ray job."""

from prefect import task

from storage.uri import URI, CheckpointURI, DatasetURI
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import stage
from tasks.planning.plan import Timeouts
from tasks.runners.runner import Runner, retry_on_fault
from tasks.stages import TrainParameters, TrainSpec


@task(name="train", **task_options, **retry_on_fault)
def train(
    prepared: DatasetURI, checkpoint: CheckpointURI, parameters: TrainParameters, timeouts: Timeouts, runner: Runner
) -> CheckpointURI:
    """Train and keep the epoch with the lowest validation loss; resume from the newest complete checkpoint."""
    parents: dict[str, URI] = {"prepared": prepared}
    parents |= {"initial": parameters.initial} if parameters.initial else {}
    parents |= {"weights": parameters.weights} if parameters.weights else {}
    with stage("train", checkpoint, parents=parents) as current:
        if not current.reused:
            runner.run("train", TrainSpec(source=prepared, **vars(parameters), **timeouts.of_job(checkpoint)))
    return checkpoint
