"""Download: fetch a data set's files and store them unchanged."""

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from prefect import task
from prefect.runtime import flow_run

from storage import commits, files, lease, manifest
from storage.manifest import Damaged, File, Manifest
from storage.uri import URI, FilesURI
from tasks.jobs.spec import scratch_of
from tasks.learning.downloading import fetch_file
from tasks.learning.sources import Source, SourceFile
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import logger, stage, tidy
from tasks.planning.plan import Plan


@task(name="download", **task_options, task_run_name="download {plan.data_name}")
def download(plan: Plan) -> FilesURI | None:
    """Download the data set's files and verify their published checksums; resume an interrupted download by file.

    Tries the plan's mirrors before the data set's own. Returns None if nothing is downloaded: the user's own data,
    or a raw dataset that exists although its files do not. Raises `DownloadFailed` if no mirror served a file with the
    right checksum.
    """
    if plan.files is None or _are_not_needed(plan.files, plan.raw):
        return None
    with stage("download", plan.files, deadline_s=plan.stage_timeout_s) as current:
        if not current.reused:
            uri = plan.files
            with lease.held(
                plan.root,
                uri,
                owner=f"flow run {flow_run.name or os.getpid()}",
                is_done=lambda: manifest.is_committed(uri),
                on_wait=lambda other: logger().warning(
                    "waiting: %s on %s is already downloading this dataset", other.owner, other.host
                ),
            ) as held:
                if held:
                    fetch_and_commit(
                        plan.source,
                        uri,
                        mirrors=[*plan.mirrors, *plan.source.mirrors],
                        scratch=scratch_of(plan.root, uri),
                        log=logger().info,
                        patience_s=plan.download_timeout_s,
                    )
    return plan.files


def _are_not_needed(uri: FilesURI, raw: URI) -> bool:
    """Return whether the files are missing or damaged while the raw dataset made from them exists."""
    if not manifest.is_committed(raw):
        return False
    try:
        return manifest.find(uri) is None
    except Damaged as error:
        logger().warning("%s; it is not needed while %s exists", error, raw)
        return True


def fetch_and_commit(
    source: Source,
    uri: FilesURI,
    *,
    mirrors: Sequence[str],
    scratch: URI,
    log: Callable[..., None],
    patience_s: float = 0.0,
) -> Manifest:
    """Fetch the missing files of `source` one by one and commit `uri`; keep trying mirrors for `patience_s`."""
    started = time.monotonic()
    until = started + patience_s
    listed: list[File] = []
    origins: list[dict[str, Any]] = []
    for file in source.files:
        place, origin = uri.child(file.stored), scratch.child(f"origins/{file.stored}.json")
        if files.exists(place) and files.sha256(place) == file.sha256:
            log("%s: reusing the file of an earlier attempt", file.name)
            origins.append(_origin(file, origin))
        else:
            with files.workspace(scratch) as folder:
                left_s = max(0.0, until - time.monotonic())
                origins.append(fetch_file(file, folder, mirrors=mirrors, log=log, patience_s=left_s))
                files.put(origin, json.dumps(origins[-1]).encode())
                files.put(place, folder / file.name)
        listed.append(File(path=file.stored, size=files.entry(place).size, sha256=file.sha256))
    committed = commits.commit(
        uri,
        kind="files",
        parents={},
        parameters={"data": source.name},
        listed=listed,
        statistics={"sources": origins, "seconds": time.monotonic() - started},
    )
    tidy(scratch)
    return committed


def _origin(file: SourceFile, noted: URI) -> dict[str, Any]:
    """Read from which mirror an earlier attempt fetched `file`."""
    try:
        return dict(json.loads(files.read(noted)))
    except FileNotFoundError:
        return {"name": file.name, "md5": file.md5, "sha256": file.sha256, "url": "an earlier attempt"}
