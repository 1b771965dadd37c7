"""Preprocess: check, split and shuffle a raw dataset, as a Ray job."""

from prefect import task

from storage.uri import DatasetURI, Root
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
    fold: int | None = None,
    folds: int | None = None,
    refresh: int = 0,
    limits: Limits = Limits(),
) -> DatasetURI:
    """Write each usable row of `raw` once to a train, validation or test split; count and list unusable rows.

    Args:
        raw: Raw dataset.
        split: How training and validation rows are chosen.
        runner: Runs the job.
        root: Storage root of the result; None: that of `raw`.
        fold: For an audit: number of the fold, from 0, whose rows are the test rows.
        folds: Number of folds.
        refresh: Number of the repetition.
        limits: Time limits.
    """
    stage = Preprocess(root=root, raw=raw, split=split, fold=fold, folds=folds, refresh=refresh)
    return run_once(stage, runner, limits=limits)
