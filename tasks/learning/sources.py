"""Fetching a data set's files from its mirrors, with torchvision's download code and checksums."""

import contextlib
import errno
import functools
import gzip
import hashlib
import io
import operator
import os
import shutil
import socket
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote, urlsplit

from tenacity import RetryCallState, Retrying, stop_after_attempt, wait_exponential, wait_random

from storage import files
from storage.uri import masked
from tasks.learning.datasets import DataSet, SourceFile

_TRIES = 4
_PAUSES = wait_exponential(multiplier=0.5, max=20) + wait_random(0, 1)
"""Between two tries."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 60.0
"""Before all mirrors are tried again; each wait is twice the one before."""
_NO_NETWORK = (errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EHOSTDOWN)
"""How a system call fails on a machine without one."""
_PIECE_BYTES = 2**20
"""Of what is unpacked, in memory at a time."""
_STALL_S = 30
"""A connection that gives nothing for so long is given up."""


class DownloadFailed(RuntimeError):
    """No mirror gave a file with the right checksum; the message says what each one did."""


class Unreachable(DownloadFailed):
    """No mirror could be reached: names do not resolve, connections are refused, or nobody answers."""


class WrongChecksum(Exception):
    """A mirror gave, or an archive held, other bytes than the published ones; they are deleted."""


def import_what_fetching_needs() -> None:
    """Import now what `fetch` would import later: that takes seconds."""
    import torchvision.datasets.utils  # noqa: F401


def fetch(data_set: DataSet, folder: Path, *, mirrors: Sequence[str], log: Callable[..., None]) -> list[dict[str, str]]:
    """Fetch every file of `data_set` into `folder`, as `fetch_file` does, and return where each came from."""
    return [fetch_file(file, folder, mirrors=mirrors, log=log) for file in data_set.files]


def fetch_file(
    file: SourceFile, folder: Path, *, mirrors: Sequence[str], log: Callable[..., None], patience_s: float = 0.0
) -> dict[str, str]:
    """Fetch `file` into `folder` with the right checksums, and return where it came from.

    Faults of the network are tried again with growing pauses, a wrong checksum once, then the next mirror is taken.

    Args:
        file: What to fetch.
        folder: Where to.
        mirrors: Addresses to try, in this order.
        log: Takes a message and its arguments.
        patience_s: For how long all mirrors are tried again while none of them can be reached.

    Raises:
        DownloadFailed: The message says what each mirror did.
    """
    until = time.monotonic() + patience_s
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return _fetch_from_any(file, folder, mirrors, log)
        except Unreachable as error:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise
            text = "%s; retrying all mirrors for another %.1f minutes (--patience, in a deployment patience_minutes)"
            log(text, error, left_s / 60)
            time.sleep(min(left_s, wait_s))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _fetch_from_any(file: SourceFile, folder: Path, mirrors: Sequence[str], log: Callable[..., None]) -> dict[str, str]:
    """Fetch from the first mirror that has it."""
    problems: list[str] = []
    faults: list[tuple[str, Exception]] = []
    for mirror in mirrors:
        try:
            _try_mirror(mirror + file.name, file, folder)
        except (WrongChecksum, OSError, HTTPException) as error:
            if files.is_disk_full(error):
                raise files.DiskFull(f"the disk of {folder} is full: {error}; make room, then try again") from error
            problems.append(f"{mirror}: {_reason(error)}")
            faults.append((mirror, error))
            continue
        for problem in problems:
            log("%s: %s", file.name, problem)
        size = (folder / file.name).stat().st_size
        log("fetched %s, %.1f MB, from %s", file.name, size / 1e6, mirror)
        return {"name": file.name, "md5": file.md5, "sha256": file.sha256, "url": mirror + file.name}
    kind = Unreachable if _may_pass(faults) else DownloadFailed
    raise kind(f"{file.name} could not be fetched; " + "; ".join(problems))


def unpack(file: SourceFile, folder: Path) -> Path:
    """What the archive `file` in `folder` holds, beside it, with the right checksum where one is known.

    Raises `WrongChecksum` naming file, expected and found, `ValueError` for what is no whole archive.
    """
    try:
        path = _unpacked(folder / file.name)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{file.name} cannot be unpacked: {error}") from None
    if file.content_sha256:
        with path.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != file.content_sha256:
            path.unlink()
            raise WrongChecksum(f"{path.name} has the wrong sha256: expected {file.content_sha256}, found {found}")
    return path


def _unpacked(archive: Path) -> Path:
    if archive.suffix != ".gz" or archive.name.endswith(".tar.gz"):
        from torchvision.datasets.utils import extract_archive

        return Path(extract_archive(str(archive), str(archive.parent)))
    path = archive.with_suffix("")
    with gzip.open(archive) as content, path.open("wb") as unpacked:  # torchvision would hold all of it in memory
        shutil.copyfileobj(content, unpacked, _PIECE_BYTES)
    return path


def reachable(data_set: DataSet, more: Sequence[str] = ()) -> bool:
    """Whether a mirror of `data_set`, or one `more`, accepts a connection; any answer, an error page too, is one."""
    return any(_answers(mirror + data_set.files[0].name) for mirror in [*more, *data_set.mirrors])


def nobody_answers(data_set: DataSet, more: Sequence[str] = ()) -> str:
    """What to say, and what to do, where that is not so."""
    asked = ", ".join([*more, *data_set.mirrors])
    return f"no mirror of {data_set.name} can be reached ({asked}): give one that can with --source URL_OR_DIR"


def mirror_address(source: str) -> str:
    """The address of a mirror from what a person typed, an http(s) address or a folder; it ends in `/`.

    Raises `ValueError` naming `--source`.
    """
    if source.startswith(("http://", "https://")):
        return _web_address(source)
    path = urllib.request.url2pathname(urlsplit(source).path) if source.startswith("file:///") else source
    if not path or "://" in path:
        raise ValueError(f"--source must be an http(s) address or a folder, got {masked(source)!r}")
    folder = Path(os.path.expanduser(path)).resolve()
    if not folder.is_dir():
        raise ValueError(f"--source: there is no folder {source!r}; give one that holds the data set's files")
    return folder.as_uri() + "/"


def _web_address(source: str) -> str:
    try:
        parts = urlsplit(source)
        usable = parts.hostname and parts.port != 0 and "@" not in parts.netloc and not parts.query + parts.fragment
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"--source must be http(s)://host/path/, no credentials or query, got {masked(source)!r}")
    return f"{parts.scheme}://{parts.netloc}{quote(parts.path.rstrip('/'), safe='/%:@!$&()*+,;=~')}/"


def _try_mirror(url: str, file: SourceFile, folder: Path) -> None:
    retrying = Retrying(
        stop=stop_after_attempt(_TRIES),
        wait=_PAUSES,
        retry=_may_help,
        reraise=True,
    )
    for attempt in retrying:
        with attempt:
            _fetch_once(url, file, folder)


def _fetch_once(url: str, file: SourceFile, folder: Path) -> None:
    """One try; what has not both checksums is deleted."""
    from torchvision.datasets.utils import download_url

    path = folder / file.name
    with contextlib.redirect_stderr(io.StringIO()), _socket_timeout(_STALL_S):
        if url.startswith("file:"):
            shutil.copyfile(urllib.request.url2pathname(urlsplit(url).path), path)
        else:
            # torchvision raises RuntimeError without saying what it found: the check is repeated below, with both sums.
            with contextlib.suppress(RuntimeError):
                download_url(url, str(folder), filename=file.name, md5=file.md5)
    for algorithm, expected in (("md5", file.md5), ("sha256", file.sha256)):
        found = _digest(path, algorithm)
        if found != expected:
            path.unlink(missing_ok=True)
            raise WrongChecksum(f"{url} has the wrong {algorithm}: expected {expected}, found {found}")


def _digest(path: Path, algorithm: str) -> str:
    """Compute the checksum of a file of any size; one that is not there has that of an empty one."""
    digest = functools.partial(hashlib.new, algorithm, usedforsecurity=False)
    if not path.exists():
        return digest().hexdigest()
    with path.open("rb") as content:
        return hashlib.file_digest(content, digest).hexdigest()


def _may_help(state: RetryCallState) -> bool:
    """Whether to try again after what `state` holds.

    Only once after a wrong checksum, which a file has that was cut off on the way, and after silence, which is long.
    """
    error = state.outcome.exception() if state.outcome else None
    if isinstance(getattr(error, "reason", error), WrongChecksum | TimeoutError):  # urllib wraps some
        return state.attempt_number == 1
    return error is not None and _is_transient(error)


def _is_transient(error: BaseException) -> bool:
    """Whether trying again may help: a fault of the network or of a server, not a missing file or a wrong checksum."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 429) or error.code >= 500
    reason = getattr(error, "reason", error)
    permanent = (FileNotFoundError, PermissionError, IsADirectoryError)
    if not isinstance(error, OSError | HTTPException) or files.is_disk_full(error):
        return False
    return not isinstance(reason, permanent)


def _is_unreachable(error: BaseException) -> bool:
    """Whether `error` is how a machine without a network, or a mirror that is down, shows; that may last minutes."""
    reason = getattr(error, "reason", error)  # urllib wraps some
    if isinstance(reason, socket.gaierror | ConnectionRefusedError | TimeoutError):
        return True
    return isinstance(reason, OSError) and reason.errno in _NO_NETWORK


def _may_pass(faults: Sequence[tuple[str, Exception]]) -> bool:
    """Whether a mirror could not be reached, and the others failed in passing too or are folders without the file."""
    lacks_file = [mirror.startswith("file:") and isinstance(error, FileNotFoundError) for mirror, error in faults]
    passing = [_is_unreachable(error) or _is_transient(error) for _, error in faults]
    return any(_is_unreachable(error) for _, error in faults) and all(map(operator.or_, lacks_file, passing))


def _reason(error: Exception) -> str:
    return str(error) if str(error) else type(error).__name__


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    except HTTPException:  # an answer, though not in HTTP
        return True


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """torchvision opens its connections without a limit: set the default one meanwhile."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
