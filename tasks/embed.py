"""Embed: compute what a backbone says about each image, as a Ray job."""

from prefect import task

from storage.kinds import EmbeddingsURI
from tasks.orchestration.prefect_options import task_options
from tasks.resources.needs import ANY, Limits, Needs
from tasks.runners.runner import Runner, retry_on_fault, run_once
from tasks.stages import Embed


@task(name="embed", **task_options, **retry_on_fault)
def embed(
    stage: Embed, runner: Runner, *, needs: Needs = ANY, limits: Limits = Limits(), name: str = "embed"
) -> EmbeddingsURI:
    """Embed each image of a dataset; compute only images that no earlier embeddings of these weights have.

    `name` is the stage's in logs, if a run embeds twice.
    """
    return run_once(stage, runner, limits=limits, needs=needs, name=name)
