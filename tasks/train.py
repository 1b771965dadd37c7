"""Train: fit a model to a prepared dataset and keep the best epoch's checkpoint, as a Ray job."""

from prefect import task

from storage.kinds import CheckpointURI, DatasetURI, EmbeddingsURI
from storage.uri import URI
from tasks.learning.recipes import Recipe
from tasks.orchestration.prefect_options import task_options
from tasks.resources.needs import Limits, Workers, needs_of
from tasks.runners.runner import Runner, retry_on_fault, run_once
from tasks.stages import Train


@task(name="train", **task_options, **retry_on_fault)
def train(
    prepared: DatasetURI,
    recipe: Recipe,
    runner: Runner,
    *,
    start: URI | None = None,
    embeddings: EmbeddingsURI | None = None,
    workers: Workers = None,
    cores: int | None = None,
    limits: Limits = Limits(),
) -> CheckpointURI:
    """Train and keep the epoch with the lowest validation loss; resume from the newest complete checkpoint.

    The arguments are the fields of `Train`.

    Raises:
        ValueError: `start` is missing, or given although the recipe starts from random weights; or `embeddings`, which
            a recipe with a probe needs, and no other one.
    """
    if (start is None) != (recipe.training.start.kind == "random"):
        needed = "a checkpoint, or the URI of downloaded weights" if start is None else "None"
        raise ValueError(f"start must be {needed} with start={recipe.training.start.kind}, got {start}")
    if (embeddings is None) == recipe.has_probe:
        needed = "those of `embed`" if recipe.has_probe else "None"
        raise ValueError(f"embeddings must be {needed} with recipe {recipe.name}, got {embeddings}")
    stage = Train(prepared=prepared, recipe=recipe, start=start, embeddings=embeddings, workers=workers, cores=cores)
    return run_once(stage, runner, limits=limits, needs=needs_of(recipe, workers))
