"""Download: a data set's files, kept as their mirror served them."""

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from prefect import task
from prefect.runtime import flow_run

from storage import files, lease, manifest, streams
from storage.manifest import Damaged, File, Manifest
from storage.uri import URI, FilesURI
from tasks.learning.datasets import DataSet, SourceFile
from tasks.learning.sources import fetch_file
from tasks.options import task_options
from tasks.plan import Plan, is_committed
from tasks.stage import logger, stage, tidy


@task(name="download", **task_options, task_run_name="download {plan.data_name}")
def download(plan: Plan, sources: Sequence[str]) -> FilesURI | None:
    """Keep the data set's files, checked against the published checksums; one that was cut off goes on file by file.

    Args:
        plan: What is asked for.
        sources: Addresses of mirrors that are tried before the data set's own.

    Returns:
        Where the files lie; none when nothing is downloaded: a person's own data, or a raw dataset that is there
        already while its files are not.

    Raises:
        DownloadFailed: No mirror gave a file with the right checksum.
    """
    if plan.files is None or _are_not_needed(plan.files, plan.raw):
        return None
    with stage("download", plan.files, deadline_s=plan.deadline_s) as current:
        if not current.reused:
            uri = plan.files
            with lease.held(
                plan.root,
                uri,
                owner=f"flow run {flow_run.name or os.getpid()}",
                is_done=lambda: is_committed(uri),
                on_wait=lambda other: logger().warning(
                    "waiting: %s on %s is already downloading this dataset", other.owner, other.host
                ),
            ) as held:
                if held:
                    keep(
                        plan.data_set,
                        uri,
                        mirrors=[*sources, *plan.data_set.mirrors],
                        scratch=plan.scratch(uri),
                        log=logger().info,
                        patience_s=plan.patience_s,
                    )
    return plan.files


def _are_not_needed(uri: FilesURI, raw: URI) -> bool:
    """Whether the files are gone, or damaged, and what was to be made of them is there."""
    if not is_committed(raw):
        return False
    try:
        return manifest.find(uri) is None
    except Damaged as error:
        logger().warning("%s; nothing needs it as long as %s is there", error, raw)
        return True


def keep(
    data_set: DataSet,
    uri: FilesURI,
    *,
    mirrors: Sequence[str],
    scratch: URI,
    log: Callable[..., None],
    patience_s: float = 0.0,
) -> Manifest:
    """Fetch what is not there yet of the files of `data_set`, a file at a time, and commit `uri`."""
    started = time.monotonic()
    until = started + patience_s
    listed: list[File] = []
    origins: list[dict[str, Any]] = []
    for file in data_set.files:
        place, origin = uri.child(file.stored), scratch.child(f"origins/{file.stored}.json")
        if _is_whole(place, file):
            log("%s is there from an earlier attempt", file.name)
            origins.append(_origin(file, origin))
        else:
            with streams.workspace(scratch) as folder:
                left_s = max(0.0, until - time.monotonic())
                origins.append(fetch_file(file, folder, mirrors=mirrors, log=log, patience_s=left_s))
                files.replace(origin, json.dumps(origins[-1]).encode())
                streams.publish(folder / file.name, place)
        listed.append(File(path=file.stored, size=files.size(place), sha256=file.sha256))
    committed = manifest.commit(
        uri,
        kind="files",
        parents={},
        parameters={"data": data_set.name},
        listed=listed,
        statistics={"sources": origins, "seconds": time.monotonic() - started},
    )
    tidy(scratch)
    return committed


def _is_whole(place: URI, file: SourceFile) -> bool:
    try:
        return streams.sha256(place) == file.sha256
    except FileNotFoundError:
        return False


def _origin(file: SourceFile, noted: URI) -> dict[str, Any]:
    """Where an earlier attempt got `file` from."""
    try:
        origin: dict[str, Any] = json.loads(files.read(noted))
    except FileNotFoundError:
        return {"name": file.name, "md5": file.md5, "sha256": file.sha256, "url": "an earlier attempt"}
    return origin
