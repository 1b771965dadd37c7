"""Preprocess: check, split and shuffle a raw dataset, as a Ray job."""

from prefect import task

from storage.kinds import DatasetURI, EmbeddingsURI
from storage.uri import Root
from tasks.learning.recipes import Split
from tasks.orchestration.prefect_options import task_options
from tasks.resources.needs import Limits
from tasks.runners.runner import Runner, retry_on_fault, run_once
from tasks.stages import Preprocess


@task(name="preprocess", **task_options, **retry_on_fault)
def preprocess(
    raw: DatasetURI,
    split: Split,
    runner: Runner,
    *,
    root: Root | None = None,
    embeddings: EmbeddingsURI | None = None,
    refresh: int = 0,
    limits: Limits = Limits(),
) -> DatasetURI:
    """Write each usable row of `raw` once to a train, validation or test split; count and list unusable rows.

    The arguments are the fields of `Preprocess`.
    """
    stage = Preprocess(root=root, raw=raw, split=split, embeddings=embeddings, refresh=refresh)
    return run_once(stage, runner, limits=limits)
