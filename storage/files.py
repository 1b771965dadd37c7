"""Verbs over single files, with the same guarantees on a local disk and on S3.

What is written is whole or absent, never torn. On a disk a file is written beside its place, flushed, and moved or
linked there; S3 does as much by itself.
"""

import contextlib
import dataclasses
import errno
import itertools
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from storage import s3
from storage.hooks import reached
from storage.uri import URI, Root, masked

_S3_CLIENTS = ("aiobotocore", "aiohttp", "botocore")
"""Packages below s3fs whose errors may come through."""


class DiskFull(OSError):
    """There is no space left for what is to be written; what was there before stays as it was."""

    permanent = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One file as a listing shows it."""

    path: str
    """Relative to the folder that was listed."""
    size: int
    """Bytes."""
    modified: float
    """When it was last written: seconds since 1970 by the storage's clock."""
    etag: str | None = None
    """S3's name for its content; none on a disk."""


def read(uri: URI) -> bytes:
    """The whole file, from one version of it; raises `FileNotFoundError`."""
    with _absence_told(uri):
        if not uri.is_s3:
            return Path(uri).read_bytes()
        return s3.read(uri)


def read_version(uri: URI, etag: str) -> bytes | None:
    """The whole file on S3 if its content is still the one that S3 calls `etag`, else none."""
    with _absence_told(uri):
        return s3.read_version(uri, etag)


def size(uri: URI) -> int:
    """Size in bytes; raises `FileNotFoundError`, also for a folder."""
    with _absence_told(uri):
        if uri.is_s3:
            return s3.size(uri)
        found = os.stat(uri)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError
        return found.st_size


def exists(uri: URI) -> bool:
    """Whether there is a file at `uri`."""
    try:
        size(uri)
    except FileNotFoundError:
        return False
    return True


def create(uri: URI, content: bytes) -> None:
    """Write `content` where nothing is; of several writers at once exactly one succeeds.

    Raises `FileExistsError` when something is there already, `DiskFull` when there is no space. A write whose reply was
    lost is known again by its content.
    """
    _publish(uri, content, on_s3=s3.create, on_disk=os.link)


def replace(uri: URI, content: bytes) -> None:
    """Write `content`, in place of what is there; readers see the old bytes or the new ones.

    Raises `DiskFull` when there is no space; what was there stays.
    """
    _publish(uri, content, on_s3=s3.replace, on_disk=os.replace)


def children(uri: URI) -> list[str]:
    """Sorted names of the files and folders directly below `uri`, none when there is nothing.

    A folder whose files were removed may still be among them.
    """
    try:
        names = s3.names(uri) if uri.is_s3 else set(os.listdir(uri))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if name and not name.startswith(".tmp-"))


def walk(uri: URI) -> list[Entry]:
    """Every file below `uri` at any depth, sorted by path, none when there is nothing.

    Also those that `children` leaves out. A link to a folder is listed and not followed; S3 keys that no URI can name,
    such as `a//b`, are left out. Raises `PermissionError` for a folder that cannot be looked into.
    """
    found = itertools.starmap(_entry, s3.walk(uri)) if uri.is_s3 else _walk_on_disk(uri)
    return sorted(found, key=lambda entry: entry.path)


def remove(uri: URI) -> None:
    """Remove everything at and below `uri`, if there is anything."""
    if uri.is_s3:
        s3.remove(uri)
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if os.path.isdir(uri) and not os.path.islink(uri):
            shutil.rmtree(uri)
        else:
            os.unlink(uri)


def check_readable(uri: URI, *, option: str = "--storage") -> None:
    """Return when there is a file below `uri`, or a folder on a disk; writes nothing.

    Raises `FileNotFoundError` when there is nothing, and `ValueError` naming `option`, what is wrong and what to do
    when that cannot be known, within 10 s when nobody answers.
    """
    with _told(uri, option=option, verb="read"):
        if _has_content(uri):
            return
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(uri))


def check_writable(root: Root) -> None:
    """Return when files can be created below `root`, and only once; nothing but the folder itself stays.

    Raises `ValueError` naming `--storage`, what is wrong and what to do, within 10 s when nobody answers.
    """
    with _told(root, option="--storage", verb="write to"):
        if root.is_s3:
            s3.check_bucket(root)
        else:
            os.makedirs(root, exist_ok=True)
        if _refuses_to_overwrite(root):
            return
    reason, advice = "it lets a file be created twice", "choose a storage with conditional writes (If-None-Match)"
    raise ValueError(f"--storage: cannot write to {root}: {reason}; {advice}")


def check_space(uri: URI, *, needed: int) -> None:
    """Return when `needed` bytes can be written below `uri`, as far as that is known: S3 does not tell.

    Raises `DiskFull`, before a long write rather than in the middle of it.
    """
    if not uri.is_s3 and free_bytes(uri) < needed:
        raise _disk_full(uri, needed=needed)


def free_bytes(folder: str) -> int:
    """What can still be written to the disk of `folder`, which need not be there yet."""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free


def is_disk_full(error: BaseException) -> bool:
    """Whether `error` is how a file system says that it has no space left, or this user none."""
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))


def is_trouble(error: Exception) -> bool:
    """Whether `error` is how a storage says that it cannot be reached or refuses, rather than a fault of ours."""
    # botocore has many that are no OSError: no credentials, no endpoint, no region.
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _S3_CLIENTS


def _disk_full(folder: str, *, needed: int) -> DiskFull:
    return DiskFull(
        f"the disk of {folder} is full: {needed / 1e6:,.1f} MB are needed and {free_bytes(folder) / 1e6:,.1f} MB free; "
        "make room (python -m storage gc), then give the same command again"
    )


@contextlib.contextmanager
def _told(uri: URI, *, option: str, verb: str) -> Iterator[None]:
    """Every way in which `uri` cannot be reached becomes one `ValueError` that names `option` and what to do."""
    advice = "check AWS_ENDPOINT_URL and the AWS_* variables" if uri.is_s3 else "choose another folder"
    try:
        yield
        return
    except OSError as error:
        reason = error.strerror or str(error)
        if uri.is_s3 and isinstance(error, FileNotFoundError):
            reason, advice = "its bucket does not exist", "create it or name another"
        elif uri.is_s3 and isinstance(error, PermissionError):
            reason = "access is refused"
    except Exception as error:
        if not uri.is_s3 or not (isinstance(error, ValueError) or is_trouble(error)):
            raise
        reason = " ".join(str(error).split())
    raise ValueError(f"{option}: cannot {verb} {uri}: {masked(reason)}; {advice}")


def _has_content(uri: URI) -> bool:
    if uri.is_s3:
        return s3.has_content(uri)
    try:
        return bool(os.listdir(uri))
    except FileNotFoundError:
        return False


def _refuses_to_overwrite(root: Root) -> bool:
    """Whether a second `create` of one file is refused, as every commit relies on."""
    probe = root.child(f"_probe-{uuid.uuid4().hex}")
    create(probe, b"first")
    try:
        create(probe, b"second")
    except FileExistsError:
        return True
    finally:
        remove(probe)
    return False


def _entry(path: str, size: int, modified: float, etag: str) -> Entry:
    return Entry(path=path, size=size, modified=modified, etag=etag)


def _walk_on_disk(folder: URI) -> Iterator[Entry]:
    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for place, folders, names in os.walk(folder, onerror=refuse):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in [*names, *links]:
            path = os.path.join(place, name)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found = os.lstat(path)
                if name not in links and stat.S_ISLNK(found.st_mode):
                    with contextlib.suppress(OSError):  # a link to nowhere is its own size
                        found = os.stat(path)
                yield Entry(path=os.path.relpath(path, folder), size=found.st_size, modified=found.st_mtime)


@contextlib.contextmanager
def _absence_told(uri: URI) -> Iterator[None]:
    """Every way in which no file is at `uri` becomes one `FileNotFoundError` that names it."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(uri)) from None


@contextlib.contextmanager
def beside(uri: URI, *, needed: int) -> Iterator[Path]:
    """A fresh path in the folder of `uri` on a disk, removed at the end if it is still there; raises `DiskFull`."""
    folder = Path(uri).parent
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # not to be taken for a file at `uri`
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        handle, name = tempfile.mkstemp(dir=folder, prefix=".tmp-")
        os.close(handle)
        os.chmod(name, 0o644)
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise _disk_full(str(folder), needed=needed) from None
        raise


def _publish(
    uri: URI, content: bytes, *, on_s3: Callable[[URI, bytes], None], on_disk: Callable[[Path, URI], None]
) -> None:
    """Make `uri` hold `content` in one step: a request on S3, on a disk a link to what was flushed beside it."""
    if uri.is_s3:
        reached("write", uri)
        on_s3(uri, content)
    else:
        with beside(uri, needed=len(content)) as temporary:
            temporary.write_bytes(content)
            reached("write", uri)
            flush(temporary)
            on_disk(temporary, uri)
        flush(Path(uri).parent)
    reached("written", uri)


def flush(path: Path) -> None:
    """Make what was written to `path` (a file or a folder) survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
