"""Ingest: from downloaded files, or a person's own images, to a raw dataset in Parquet."""

import json
from typing import Any

from prefect import task

from storage import files as storage_files
from storage.uri import URI, DatasetURI, FilesURI
from tasks.cluster import GRACE_S, Cluster, retry_on_fault
from tasks.jobs.spec import IngestSpec
from tasks.learning import datasets
from tasks.local import Local
from tasks.options import task_options
from tasks.plan import Plan
from tasks.stage import logger, stage


@task(name="ingest", **task_options, **retry_on_fault, task_run_name="ingest {plan.data_name}")
def ingest(files: FilesURI | None, plan: Plan, cluster: Cluster) -> DatasetURI:
    """Write every image as a row of Parquet, part by part.

    It is a Ray job where there is much that can be spread over nodes; else the flow's process does the same work.

    Args:
        files: Where the data set's files lie; none for a person's own data, and for what is there already.
        plan: What is asked for.
        cluster: Where the job runs, if there is to be one.

    Returns:
        The raw dataset.
    """
    with stage("ingest", plan.raw, deadline_s=plan.deadline_s + GRACE_S) as current:
        if plan.own is not None:
            for note in plan.own.notes:
                logger().warning("--data: %s", note)
        elif plan.recipe.data != datasets.OWN and plan.data_set.notice:
            logger().warning("this is %s", plan.data_set.notice)
        if not current.reused:
            spec = IngestSpec(
                storage=plan.root,
                deadline_s=plan.deadline_s,
                scratch=plan.scratch(plan.raw),
                raw=plan.raw,
                **(_own(plan) if plan.own else {"kind": "files", "data": files, "data_set": plan.recipe.data}),
                parameters=plan.own_parameters if plan.own else {"data": plan.data_name},
            )
            chosen = cluster if plan.ingest_on_ray() else Local(wanted=False)
            chosen.run("ingest", spec, target=plan.raw, scratch=URI(spec.scratch))
    return plan.raw


def _own(plan: Plan) -> dict[str, Any]:
    """What a job must know of a person's own files; their list is left in storage for it."""
    assert plan.own is not None
    listing = json.dumps([file.model_dump() for file in plan.own.files]).encode()
    storage_files.replace(plan.scratch(plan.raw).child("listing.json"), listing)
    return {"kind": plan.own.kind, "data": plan.own.uri, "classes": plan.own.classes, "digest": plan.own.digest}
