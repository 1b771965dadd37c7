"""Ingest: turn downloaded files, or the user's images, into a raw dataset in Parquet."""

import logging
from typing import Any

from prefect import task

from storage import manifest, reference
from storage.uri import DatasetURI, FilesURI
from tasks.images import user_files
from tasks.jobs.preprocess import data_problems
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import logger, stage
from tasks.planning import data_summary
from tasks.planning.plan import IngestParameters, Timeouts
from tasks.runners.runner import InProcessRunner, Runner, retry_on_fault
from tasks.stages import IngestSpec, scratch_of


@task(name="ingest", **task_options, **retry_on_fault, task_run_name="ingest {parameters.name}")
def ingest(
    files: FilesURI | None, raw: DatasetURI, parameters: IngestParameters, timeouts: Timeouts, runner: Runner
) -> DatasetURI:
    """Write every image as a row of Parquet, part by part.

    `files` is None for the user's images and for a raw dataset that exists. A Ray job ingests many files of the user,
    the flow's own process everything else.
    """
    with stage("ingest", raw) as current:
        if parameters.user_images is not None:
            for left_out in parameters.user_images.left_out:
                is_harmless = left_out.reason.startswith(data_problems.HARMLESS)
                logger().log(logging.INFO if is_harmless else logging.WARNING, "--data: %s", left_out)
            for note in parameters.user_images.notes:
                logger().info("--data: %s", note)
        elif parameters.source is not None and parameters.source.notice:
            logger().warning("this is %s", parameters.source.notice)
        if not current.reused:
            chosen = runner if parameters.user_images and parameters.user_images.is_large else InProcessRunner()
            values = _origin(files, raw, parameters) | timeouts.of_job(raw)
            chosen.run("ingest", IngestSpec(parameters=parameters.values, **values))
        if "classes" not in parameters.values:  # else images that are only predicted
            for line in data_summary.of_raw(manifest.load(raw)):
                logger().info(line)
    return raw


def _origin(files: FilesURI | None, raw: DatasetURI, parameters: IngestParameters) -> dict[str, Any]:
    """Return the fields of the job's spec that say what it reads; write the list of the user's files for it."""
    user_images = parameters.user_images
    if user_images is None:
        return {"kind": "files", "source": files, "source_name": parameters.source_name}
    scratch = scratch_of(reference.root_of(raw), raw)
    return {
        "kind": user_images.kind,
        "source": user_images.uri,
        "classes": user_images.classes,
        "listing": user_files.write_listing(scratch, user_images.files),
        "digest": user_images.digest,
        "left_out": user_images.left_out,
        "labels": user_images.labels,
    }
