"""Ingest: turn downloaded files, or the user's images, into a raw dataset in Parquet."""

import logging

from prefect import task

from storage import manifest
from storage.kinds import DatasetURI, EmbeddingsURI, FilesURI
from storage.uri import ListingURI
from tasks.images import user_images
from tasks.images.option import ingest_stage
from tasks.jobs.preprocess import data_problems
from tasks.learning import sources
from tasks.learning.recipes import Data
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import logger
from tasks.planning import data_summary
from tasks.resources.needs import Limits
from tasks.runners.runner import InProcessRunner, Runner, retry_on_fault, run_once


@task(name="ingest", **task_options, **retry_on_fault, task_run_name="ingest {files.stem}")
def ingest(
    files: FilesURI | ListingURI,
    data: Data,
    runner: Runner,
    *,
    group: str = "none",
    embeddings: EmbeddingsURI | None = None,
    refresh: int = 0,
    limits: Limits = Limits(),
) -> DatasetURI:
    """Write every image as a row of Parquet, part by part.

    A Ray job ingests many files of the user, the flow's own process everything else.

    `files` are downloads of the source that `data` names, or a list of the user's own (`user_images.write`).
    `group`, `embeddings` and `refresh` are fields of `Ingest`.
    """
    stage = ingest_stage(files, data, group=group, embeddings=embeddings, refresh=refresh)
    images = user_images.read(stage.listing) if stage.listing else None
    if images is not None:
        for left_out in images.left_out:
            is_harmless = left_out.reason.startswith(data_problems.HARMLESS)
            logger().log(logging.INFO if is_harmless else logging.WARNING, "--data: %s", left_out)
        for note in images.notes:
            logger().info("--data: %s", note)
    elif notice := sources.load(stage.source).notice:
        logger().warning("this is %s", notice)
    raw = run_once(stage, runner if images and images.is_large else InProcessRunner(), limits=limits)
    if not stage.is_new:
        for line in data_summary.of_raw(manifest.load(raw)):
            logger().info(line)
    return raw
