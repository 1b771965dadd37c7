"""Download: fetch a source's files and pretrained weights, and store them unchanged."""

import time
from pathlib import Path

from prefect import task

from storage import commits, manifest
from storage import files as storage_files
from storage.kinds import FilesURI
from storage.manifest import File
from storage.statistics import FilesStatistics, Origin
from tasks.learning.downloading import fetch_file
from tasks.learning.sources import SourceFile
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
    started = time.monotonic()
    try:
        fetched = [_fetch_file(file, stage, limits) for file in stage.files]
        commits.commit(
            stage.target,
            kind="files",
            parents={},
            parameters=stage.values,
            listed=[entry for entry, _ in fetched],
            statistics=FilesStatistics(
                sources=tuple(origin for _, origin in fetched), seconds=time.monotonic() - started
            ),
        )
    except Exception:
        if not manifest.is_committed(stage.target):  # else another run was first, and deleted the scratch files
            raise
    tidy(stage.scratch)


def _fetch_file(file: SourceFile, stage: Download, limits: Limits) -> tuple[File, Origin]:
    log, place = logger().info, stage.target.child(file.stored)
    is_there = not file.model and storage_files.exists(place)
    if is_there and (digest := storage_files.sha256(place)).startswith(file.sha256):
        log("%s: reusing the file of an earlier attempt", file.name)
        origin = Origin(name=file.name, md5=file.md5, sha256=digest, url="an earlier attempt")
    else:
        with storage_files.workspace(stage.scratch) as folder:
            if file.model:
                from tasks.learning import pretrained  # imports torch, which takes seconds

                digest = pretrained.save_published(file.model, folder / file.name)
                origin = Origin(name=file.name, sha256=digest, url=f"published weights of {file.model}")
                place = stage.target.child(f"{Path(file.name).stem}-{digest[:12]}.safetensors")
            else:
                origin = fetch_file(file, folder, mirrors=stage.mirrors, stall_s=limits.download_s, log=log)
            storage_files.put(place, folder / file.name)
    return File(path=place.name, size=storage_files.entry(place).size, sha256=origin.sha256), origin
