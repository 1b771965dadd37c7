"""Download: fetch a source's files and pretrained weights, and store them unchanged."""

import time
from collections.abc import Sequence
from pathlib import Path

from prefect import task

from storage import commits, manifest, reference
from storage import files as storage_files
from storage.manifest import File
from storage.statistics import FilesStatistics, Origin
from storage.uri import URI, FilesURI
from tasks.learning.downloading import fetch_file
from tasks.learning.sources import Download
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import logger, stage, tidy
from tasks.planning.plan import DownloadParameters, Timeouts
from tasks.stages import scratch_of


@task(name="download", **task_options, task_run_name="download {parameters.name}")
def download(
    files: FilesURI | None, weights: FilesURI | None, parameters: DownloadParameters, timeouts: Timeouts
) -> FilesURI | None:
    """Download the source's files and initial weights, and verify their checksums; return `files`.

    Resumes an interrupted download by file. Tries the mirrors of `parameters` before the published ones. `files` is
    None with the user's images, and for a raw dataset that exists although its files do not; `weights` is None unless
    training starts from a file. Raises `DownloadFailed` if no mirror served a file with the right checksum.
    """
    if weights is not None and parameters.weights is not None:
        _download("download weights", weights, parameters.weights, parameters, timeouts)
    if files is None or parameters.source is None:
        return None
    _download("download", files, parameters.source, parameters, timeouts)
    return files


def _download(name: str, files: FilesURI, source: Download, parameters: DownloadParameters, timeouts: Timeouts) -> None:
    with stage(name, files, timeout_s=timeouts.stage_s) as current:
        if current.reused:
            return
        scratch = scratch_of(reference.root_of(files), files)
        try:
            _fetch_and_commit(source, files, mirrors=[*parameters.mirrors, *source.mirrors], scratch=scratch)
        except Exception:
            if not manifest.is_committed(files):  # else another run was first, and deleted the scratch files
                raise


def _fetch_and_commit(source: Download, uri: FilesURI, *, mirrors: Sequence[str], scratch: URI) -> None:
    """Fetch the missing files of `source` one by one and commit `uri`."""
    started = time.monotonic()
    log = logger().info
    listed: list[File] = []
    origins: list[Origin] = []
    for file in source.files:
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
                    origins.append(fetch_file(file, folder, mirrors=mirrors, log=log))
                storage_files.put(place, folder / file.name)
        listed.append(File(path=place.name, size=storage_files.entry(place).size, sha256=origins[-1].sha256))
    commits.commit(
        uri,
        kind="files",
        parents={},
        parameters={"data": source.name},
        listed=listed,
        statistics=FilesStatistics(sources=tuple(origins), seconds=time.monotonic() - started),
    )
    tidy(scratch)
