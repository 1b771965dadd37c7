"""Download: from a data set's mirrors to a raw dataset in Parquet."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from prefect import task
from prefect.runtime import flow_run

from storage import files, lease, manifest, tables
from storage.manifest import File
from storage.uri import URI, DatasetURI
from tasks.cluster import GRACE_S, Cluster, retry_on_fault
from tasks.jobs.spec import IngestSpec
from tasks.learning import datasets, images
from tasks.learning.datasets import DataSet, Split
from tasks.learning.sources import fetch
from tasks.options import task_options
from tasks.plan import Plan, is_committed
from tasks.stage import logger, stage, tidy


@task(name="download", **task_options, **retry_on_fault, task_run_name="download {plan.data_name}")
def download(plan: Plan, sources: Sequence[str], cluster: Cluster) -> DatasetURI:
    """Every image of the data set as Parquet, checked against the published checksums, or an error and nothing.

    A person's own images are read where they lie, by a Ray job. Each of `sources` is the address of a mirror, tried
    before the data set's own. Raises `DownloadFailed`.
    """
    if plan.own is not None:
        return read_own(plan, cluster)
    with stage("download", plan.raw, deadline_s=plan.deadline_s) as current:
        if plan.recipe.data != datasets.OWN and plan.data_set.notice:
            logger().warning("this is %s", plan.data_set.notice)
        if not current.reused:
            with lease.held(
                plan.root,
                plan.raw,
                owner=f"flow run {flow_run.name or os.getpid()}",
                is_done=lambda: is_committed(plan.raw),
                on_wait=lambda other: logger().warning("%s on %s is at it: waiting", other.owner, other.host),
            ) as held:
                if held:
                    ingest(plan.data_set, plan.raw, sources=sources, scratch=plan.scratch(plan.raw), log=logger().info)
    return plan.raw


def read_own(plan: Plan, cluster: Cluster) -> DatasetURI:
    """Every image of a person's own as a row of one size, those that cannot be read without pixels."""
    assert plan.own is not None
    with stage("download", plan.raw, deadline_s=plan.deadline_s + GRACE_S) as current:
        for note in plan.own.notes:
            logger().warning("--data: %s", note)
        if not current.reused:
            scratch = plan.scratch(plan.raw)
            listing = scratch.child("listing.json")
            files.replace(listing, json.dumps([file.model_dump() for file in plan.own.files]).encode())
            spec = IngestSpec(
                storage=plan.root,
                deadline_s=plan.deadline_s,
                data=plan.own.uri,
                listing=listing,
                kind=plan.own.kind,
                classes=list(plan.own.classes),
                digest=plan.own.digest,
                parameters=plan.own_parameters,
                raw=plan.raw,
            )
            cluster.run("ingest", spec, target=plan.raw, scratch=scratch)
    return plan.raw


def ingest(
    data_set: DataSet, uri: DatasetURI, *, sources: Sequence[str] = (), scratch: URI, log: Callable[..., None]
) -> manifest.Manifest:
    """Fetch `data_set`, write it to `uri` and commit; the files fetched are removed again."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".tmp-download-", dir=_local(scratch)) as folder:
        origins = fetch(data_set, Path(folder), mirrors=[*sources, *data_set.mirrors], log=log)
        listed: list[File] = []
        counts: dict[str, dict[str, int]] = {}
        for split in data_set.read(Path(folder)):
            _check(data_set, split)
            files.check_space(uri, needed=split.images.nbytes)
            listed += write_split(data_set, uri, split)
            counts[split.name] = _class_counts(data_set, split)
            log("wrote %s rows of split %s", f"{len(split.labels):,}", split.name)
    committed = manifest.commit(
        uri,
        kind="raw",
        parents={},
        parameters={"data": data_set.name},
        listed=listed,
        schema=tables.describe(images.schema(data_set.image_shape, data_set.classes)),
        statistics={
            "sources": origins,
            "class_counts": counts,
            "notice": data_set.notice,
            "seconds": time.monotonic() - started,
        },
    )
    tidy(scratch)
    return committed


def _check(data_set: DataSet, split: Split) -> None:
    if split.images.dtype != np.uint8 or split.images.shape[1:] != data_set.image_shape:
        found = f"{split.images.dtype} {split.images.shape[1:]}"
        raise ValueError(f"{data_set.name} {split.name}: images must be uint8 {data_set.image_shape}, got {found}")
    if len(split.images) == 0:
        raise ValueError(f"{data_set.name} {split.name}: there are no images in it")
    if split.labels.dtype.kind not in "iu" or split.labels.shape != (len(split.images),):
        found = f"{split.labels.dtype} {split.labels.shape}"
        raise ValueError(f"{data_set.name} {split.name}: labels must be int64 ({len(split.images)},), got {found}")


def write_split(data_set: DataSet, uri: DatasetURI, split: Split) -> list[File]:
    """Write every row of `split` below `uri`; the entries of its parts for the manifest, in order.

    Parts are compressed side by side, and written one by one in this thread, which a deadline can interrupt.
    """
    bounds = images.part_bounds(len(split.labels), images.num_parts(len(split.labels), data_set.image_shape))

    def encoded(rows: tuple[int, int]) -> bytes:
        here = slice(*rows)
        ids = np.arange(*rows)
        return tables.encode(images.to_table(ids, split.images[here], split.labels[here], classes=data_set.classes))

    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        contents = pool.map(encoded, bounds)
        return [
            tables.write_encoded(uri, content, rows=stop - start, split=split.name, index=index)
            for index, ((start, stop), content) in enumerate(zip(bounds, contents, strict=True))
        ]
    finally:
        pool.shutdown(cancel_futures=True)


def _class_counts(data_set: DataSet, split: Split) -> dict[str, int]:
    """Rows of each class; rows with another label stay in the raw dataset, and preprocess leaves them out."""
    return {name: int((split.labels == label).sum()) for label, name in enumerate(data_set.classes)}


def _local(scratch: URI) -> str | None:
    """A folder for what is fetched: below the storage root where that is local, else the system's own."""
    if scratch.is_s3:
        return None
    Path(scratch).mkdir(parents=True, exist_ok=True)
    return str(scratch)
