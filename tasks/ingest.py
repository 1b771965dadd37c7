"""Ingest: turn downloaded files, or the user's own images, into a raw dataset in Parquet."""

import dataclasses
from typing import Any

from prefect import task

from storage import manifest
from storage.uri import URI, DatasetURI, FilesURI
from tasks.jobs.ingest import user_files
from tasks.jobs.spec import IngestSpec, scratch_of
from tasks.learning import sources
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import logger, stage
from tasks.planning import data_summary, predict_request, warm_start
from tasks.planning.plan import Plan
from tasks.planning.predict_request import BatchRequest
from tasks.planning.user_images import UserImages
from tasks.runners.runner import InProcessRunner, Runner, retry_on_fault


@task(name="ingest", **task_options, **retry_on_fault, task_run_name="ingest {plan.data_name}")
def ingest(files: FilesURI | None, plan: Plan, cluster: Runner) -> DatasetURI:
    """Write every image as a row of Parquet, part by part.

    `files` is None for the user's own data and for an existing raw dataset. Large data that can be spread over nodes is
    ingested by a Ray job, other data in the flow's own process.
    """
    with stage("ingest", plan.raw) as current:
        if plan.user_images is not None:
            for note in [*plan.user_images.left_out, *plan.user_images.notes]:
                logger().warning("--data: %s", note)
        elif plan.recipe.data.source != sources.USER_IMAGES and plan.source.notice:
            logger().warning("this is %s", plan.source.notice)
        if not current.reused:
            runner = cluster if plan.ingest_on_ray() else InProcessRunner()
            if plan.user_images is not None:
                listed = _listed(plan.user_images, scratch_of(plan.root, plan.raw))
                _run(runner, plan, plan.raw, parameters=plan.user_images_parameters, **listed)
            else:
                source = {"kind": "files", "source": files, "source_name": plan.recipe.data.source}
                _run(runner, plan, plan.raw, parameters={"data": plan.data_name}, **source)
            warm_start.check_comparable(plan)  # the classes of Parquet data are only known now
        for line in data_summary.of_raw(manifest.load(plan.raw)):
            logger().info(line)
        if plan.user_images is not None:
            _tell_unreadable("--data", plan.raw)
    return plan.raw


@task(name="ingest", **task_options, **retry_on_fault, task_run_name="ingest {user_images.name}")
def ingest_user_images(user_images: UserImages, request: BatchRequest, cluster: Runner) -> DatasetURI:
    """Write new user images as rows of Parquet, resized like the images that the model was trained on."""
    raw = request.dataset
    with stage("ingest", raw) as current:
        for note in [*user_images.left_out, *user_images.notes]:
            logger().warning("--data: %s", note)
        if not current.reused:
            runner = cluster if user_images.is_large else InProcessRunner()
            parameters = predict_request.ingest_parameters(user_images, request.checkpoint)
            listed = _listed(user_images, scratch_of(request.root, raw))
            _run(runner, request, raw, parameters=parameters, **listed)
        _tell_unreadable("--data", raw)
    return raw


def _run(runner: Runner, request: Plan | BatchRequest, raw: DatasetURI, **source: Any) -> None:
    limits: dict[str, Any] = {"deadline_s": request.stage_timeout_s, "stall_s": request.stall_timeout_s}
    runner.run("ingest", IngestSpec(storage=request.root, target=raw, **limits, **source))


def _listed(user_images: UserImages, scratch: URI) -> dict[str, Any]:
    """Return what the job has to know of the user's files, and write their list to `scratch` for it."""
    return {
        "kind": user_images.kind,
        "source": user_images.uri,
        "classes": user_images.classes,
        "labels": user_images.labels,
        "listing": user_files.write_listing(scratch, user_images.files),
        "digest": user_images.digest,
        "left_out": [dataclasses.asdict(left_out) for left_out in user_images.left_out],
    }


def _tell_unreadable(option: str, raw: DatasetURI) -> None:
    if unreadable := user_files.describe_unreadable(manifest.load(raw)):
        logger().warning("%s: %s", option, unreadable)
