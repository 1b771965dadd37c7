"""Download: fetch a source's files and pretrained weights, and store them unchanged."""

import time
from pathlib import Path

from prefect import task

from storage import commits, manifest
from storage import files as storage_files
from storage.manifest import File
from storage.statistics import FilesStatistics, Origin
from storage.uri import FilesURI
from tasks.learning.downloading import fetch_file
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import logger, make_once, tidy
from tasks.resources.needs import Limits
from tasks.stages import Download


@task(name="download", **task_options, task_run_name="download {stage.data}")
def download(stage: Download, *, limits: Limits = Limits(), name: str = "download") -> FilesURI:
    """Download the files of `stage`, and verify their checksums; resume an interrupted download by file.

    Raises `DownloadFailed` if no mirror served a file with the right checksum.
    """
    return make_once(stage, lambda: _fetch(stage, limits), name=name, timeout_s=limits.stage_s)


def _fetch(stage: Download, limits: Limits) -> None:
    try:
        _fetch_and_commit(stage, limits)
    except Exception:
        if not manifest.is_committed(stage.target):  # else another run was first, and deleted the scratch files
            raise


def _fetch_and_commit(stage: Download, limits: Limits) -> None:
    """Fetch the missing files one by one and commit them."""
    uri, scratch = stage.target, stage.scratch
    started = time.monotonic()
    log = logger().info
    listed: list[File] = []
    origins: list[Origin] = []
    for file in stage.files:
        place = uri.child(file.stored)
        is_there = not file.model and storage_files.exists(place)
        if is_there and (digest := storage_files.sha256(place)).startswith(file.sha256):
            log("%s: reusing the file of an earlier attempt", file.name)
            origins.append(Origin(name=file.name, md5=file.md5, sha256=digest, url="an earlier attempt"))
        else:
            with storage_files.workspace(scratch) as folder:
                if file.model:
                    from tasks.learning import pretrained  # imports torch, which takes seconds

                    digest = pretrained.save_published(file.model, folder / file.name)
                    url = f"published weights of {file.model}"
                    origins.append(Origin(name=file.name, sha256=digest, url=url))
                    place = uri.child(f"{Path(file.name).stem}-{digest[:12]}.safetensors")
                else:
                    origins.append(fetch_file(file, folder, mirrors=stage.mirrors, stall_s=limits.download_s, log=log))
                storage_files.put(place, folder / file.name)
        listed.append(File(path=place.name, size=storage_files.entry(place).size, sha256=origins[-1].sha256))
    commits.commit(
        uri,
        kind="files",
        parents={},
        parameters=stage.values,
        listed=listed,
        statistics=FilesStatistics(sources=tuple(origins), seconds=time.monotonic() - started),
    )
    tidy(scratch)
