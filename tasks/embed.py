"""Embed: compute what a backbone says about each image, as a Ray job."""

from prefect import task

from storage import kinds
from storage.kinds import DatasetURI, EmbeddingsURI
from storage.uri import URI, Root
from tasks.orchestration.prefect_options import task_options
from tasks.resources.needs import ANY, Limits, Needs
from tasks.runners.runner import Runner, retry_on_fault, run_once
from tasks.stages import Embed


@task(name="embed", **task_options, **retry_on_fault)
def embed(
    dataset: DatasetURI,
    model: str,
    runner: Runner,
    *,
    start: URI | None = None,
    root: Root | None = None,
    needs: Needs = ANY,
    limits: Limits = Limits(),
    name: str = "embed",
) -> EmbeddingsURI:
    """Embed each image of `dataset`; compute only images that no earlier embeddings of these weights have.

    `name` is the stage's in logs, if a run embeds twice. The other arguments are the fields of `Embed`.
    """
    images = {"prepared" if kinds.PREPARED.holds(dataset) else "raw": dataset}
    stage = Embed(root=root, **images, model=model, start=start)
    return run_once(stage, runner, limits=limits, needs=needs, name=name)
