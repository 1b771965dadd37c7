"""Download of a source's files from its mirrors, with checksums."""

import functools
import hashlib
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote, urlsplit

from tenacity import RetryCallState, Retrying, stop_after_attempt, wait_exponential, wait_random
from tenacity.wait import wait_base

from storage import error_policy, files
from storage.error_policy import Permanent, is_transient_download
from storage.statistics import Origin
from storage.terminal import size as in_units
from storage.uri import URI, is_web_address, redact, redact_text
from tasks.learning.sources import Download, SourceFile, is_public

_PAUSES = wait_exponential(multiplier=0.5, max=20) + wait_random(0, 1)
"""Pauses between two tries of one mirror, in seconds."""
_PIECE_BYTES = 2**20  # bytes held in memory at a time
STALL_S = 30.0  # seconds without data after which a connection is given up


class DownloadFailed(RuntimeError):
    """No mirror gave a file with the right checksum; the message has the error of each mirror."""


class WrongChecksum(Permanent):
    """A downloaded file has a wrong checksum; it was deleted."""


def fetch_file(
    file: SourceFile,
    folder: Path,
    *,
    mirrors: Sequence[str],
    log: Callable[..., None],
    pauses: wait_base = _PAUSES,
    stall_s: float = STALL_S,
) -> Origin:
    """Download `file` into `folder`, verify its checksums, and return its name, checksums and URL.

    Network errors are retried with growing pauses, a wrong checksum once; then the next mirror is tried. Raises
    `DownloadFailed` with the error of each mirror.
    """
    problems: list[str] = []
    retrying = Retrying(stop=stop_after_attempt(4), wait=pauses, retry=_may_help, reraise=True)
    for mirror, url in _addresses(file, mirrors):
        try:
            retrying(_fetch_once, url, file, folder, stall_s)
        except (WrongChecksum, OSError, HTTPException) as error:
            if error_policy.is_disk_full(error):
                raise error_policy.DiskFull(
                    f"the disk of {folder} is full: {error}; make room, then run the same command again"
                ) from error
            problems.append(f"{redact(mirror)}: {redact_text(str(error)) or type(error).__name__}")
            continue
        for problem in problems:
            log("%s: %s", file.name, problem)
        size = (folder / file.name).stat().st_size
        log("fetched %s, %s, from %s", file.name, in_units(size), redact(mirror))
        return Origin(name=file.name, md5=file.md5, sha256=_digest(folder / file.name, "sha256"), url=url)
    advice = "name another mirror or a folder with --mirror"
    raise DownloadFailed(f"{file.name} could not be fetched; {'; '.join(problems)}; {advice}")


def _addresses(file: SourceFile, mirrors: Sequence[str]) -> list[tuple[str, str]]:
    """Return each place of `file`, as a message shows it, with the file's address there."""
    copies = [(file.copy, file.copy)] if file.copy else []
    return copies + [(mirror, mirror + file.name) for mirror in mirrors]


def check_reachable(source: Download, more: Sequence[str]) -> None:
    """Raise `ValueError` unless any mirror of `source` or in `more` answers, if with an error page."""
    addresses = _addresses(source.files[0], [*more, *source.mirrors])
    if not any(_answers(url) for _, url in addresses):
        names = ", ".join(file.name for file in source.files)
        raise ValueError(
            f"no mirror of {source.name} can be reached ({', '.join(redact(place) for place, _ in addresses)}); name "
            f"another one with --mirror URL_OR_DIR; a folder must have {names} as they were published, not unpacked"
        )


def mirror_address(mirror: str) -> str:
    """Convert the value of `--mirror`, an http(s) address or a folder, to the address of a mirror, ending in `/`."""
    if mirror.startswith(("http://", "https://")):
        if not (is_web_address(mirror) and is_public(mirror)):
            address = redact(mirror)
            raise ValueError(f"--mirror must be http(s)://host/path/ without credentials or query, got {address!r}")
        parts = urlsplit(mirror)
        return f"{parts.scheme}://{parts.netloc}{quote(parts.path.rstrip('/'), safe='/%:@!$&()*+,;=~')}/"
    path = urllib.request.url2pathname(urlsplit(mirror).path) if mirror.startswith("file:///") else mirror
    if not path or "://" in path:
        raise ValueError(f"--mirror must be an http(s) address or a folder, got {redact(mirror)!r}")
    folder = Path(os.path.expanduser(path)).resolve()
    if not folder.is_dir():
        raise ValueError(f"--mirror: there is no folder {mirror!r}; choose one that contains the source's files")
    return folder.as_uri() + "/"


def _fetch_once(url: str, file: SourceFile, folder: Path, stall_s: float) -> None:
    """Download once; delete the file if one of its checksums is wrong."""
    path = folder / file.name
    if url.startswith("file:"):
        shutil.copyfile(urllib.request.url2pathname(urlsplit(url).path), path)
    else:
        with path.open("wb") as copy:
            copy.writelines(files.pieces(URI(url)) if url.startswith("s3:") else _pieces(url, stall_s))
    for algorithm, expected in (("md5", file.md5), ("sha256", file.sha256)):
        digest = _digest(path, algorithm)
        if not digest.startswith(expected):
            path.unlink(missing_ok=True)
            raise WrongChecksum(f"{url} has the wrong {algorithm}: expected {expected}, found {digest}")


def _pieces(url: str, stall_s: float) -> Iterator[bytes]:
    """Yield a file of the web; raises `TimeoutError` if it stalls, `ConnectionError` if it breaks off."""
    request = urllib.request.Request(url, headers={"User-Agent": "pytorch/vision"})  # some refuse Python's
    with urllib.request.urlopen(request, timeout=stall_s) as answer:
        while piece := answer.read1(_PIECE_BYTES):
            yield piece
        if answer.length:
            raise ConnectionError(f"it broke off {in_units(answer.length)} before the end")


def _digest(path: Path, algorithm: str) -> str:
    digest = functools.partial(hashlib.new, algorithm, usedforsecurity=False)
    with path.open("rb") as content:
        return hashlib.file_digest(content, digest).hexdigest()


def _may_help(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(getattr(error, "reason", error), WrongChecksum | TimeoutError):  # cut off; or it takes long
        return state.attempt_number == 1
    return error is not None and is_transient_download(error)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.HTTPError, HTTPException):  # an answer, though an error or not in HTTP
        return True
    except OSError:
        return False
