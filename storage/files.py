"""Operations on single files, with the same guarantees on a local disk and on S3.

A written file is complete or absent, never partial. On a disk, a file is written to a temporary path in its folder,
flushed, and then renamed or linked; S3 gives this guarantee itself. `pieces`, `sha256` and `put` of a path take files
of any size: piece by piece, so that they never fill the memory.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from storage import s3
from storage.error_policy import DiskFull, is_disk_full
from storage.failpoints import failpoint
from storage.uri import URI

_TEMPORARY = ".tmp-"
"""Prefix of the names of temporary files."""


class Entry(NamedTuple):
    """One file of a listing."""

    path: str
    """Path relative to the listed folder."""
    size: int
    """Size in bytes."""
    modified: float
    """Time of the last write: seconds since 1970 by the storage's clock."""
    etag: str | None = None
    """ETag of the content on S3; none on a disk."""


def read(uri: URI) -> bytes:
    """Read a whole file, all from one version of it; raises `FileNotFoundError`."""
    with _errors_as_not_found(uri):
        return s3.read(uri) if uri.is_s3 else Path(uri).read_bytes()


def pieces(uri: URI, *, etag: str | None = None) -> Iterator[bytes]:
    """Yield a whole file piece by piece; on S3, all from one version: the one with `etag`, as in a listing, if given.

    Raises `FileNotFoundError`, and `s3.Overwritten` if the file is or becomes another version.
    """
    if uri.is_s3:
        yield from s3.pieces(uri, etag=etag)
        return
    with open(uri, "rb") as file:
        while content := file.read(s3.PIECE_BYTES):
            yield content


def sha256(uri: URI) -> str:
    """Compute the SHA-256 of a file; raises `FileNotFoundError`."""
    digest = hashlib.sha256()
    for content in pieces(uri):
        digest.update(content)
    return digest.hexdigest()


def entry(uri: URI) -> Entry:
    """Return one file as a listing of its folder does; raises `FileNotFoundError`, also for a folder or device."""
    with _errors_as_not_found(uri):
        if uri.is_s3:
            return Entry(uri.name, *s3.described(uri))
        status = os.stat(uri)
        if not stat.S_ISREG(status.st_mode):  # a folder, or a pipe or device, whose reading would never end
            raise IsADirectoryError
        return Entry(path=uri.name, size=status.st_size, modified=status.st_mtime)


def exists(uri: URI) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return bool(entry(uri))
    return False


def put(uri: URI, content: bytes | Path, *, mode: Literal["create", "replace"] = "replace") -> None:
    """Write a file, and its folder, in one step: readers see all of `content` or what was there before.

    To `replace`, `content` may be a local file: a disk moves it, S3 leaves it there. Of several writers at once that
    `create` different bytes, exactly one succeeds, also if S3's reply to it is lost; the others raise
    `FileExistsError`. Raises `DiskFull` without space, and an existing file stays.
    """
    if uri.is_s3:
        failpoint("write", uri)
        if mode == "create":
            assert isinstance(content, bytes), content
            s3.create(uri, content)
        else:
            s3.replace(uri, content)
    else:
        try:
            _put_on_disk(uri, content, mode)
        except FileNotFoundError:  # another run of the same command has just removed the folder: scratch of a result
            _put_on_disk(uri, content, mode)
    failpoint("written", uri)


def _put_on_disk(uri: URI, content: bytes | Path, mode: Literal["create", "replace"]) -> None:
    """Write a temporary file in the folder of `uri`, and give it its name once it is flushed."""
    folder, needed = Path(uri).parent, len(content) if isinstance(content, bytes) else content.stat().st_size
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # the caller would read it as "`uri` exists"
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        temporary = folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            if isinstance(content, bytes):
                temporary.write_bytes(content)
            else:
                shutil.move(content, temporary)  # a rename if both are on one disk
            failpoint("write", uri)
            _flush(temporary)
            try:
                (os.link if mode == "create" else os.replace)(temporary, uri)
            except FileExistsError:
                if not os.path.samefile(temporary, uri):  # NFS may lose its reply, and say this when asked again
                    raise
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise _disk_full(str(folder), needed=needed) from None
        raise
    _flush(folder)


def children(uri: URI) -> list[str]:
    """Return the sorted names of what is directly below `uri`, perhaps also of a folder whose files were deleted."""
    try:
        names = s3.names(uri) if uri.is_s3 else os.listdir(uri)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if name and not name.startswith(_TEMPORARY))


def walk(uri: URI, *, unnamed: list[str] | None = None, closed: dict[str, str] | None = None) -> list[Entry]:
    """Return every file below `uri` at any depth, sorted by path; empty if nothing is there.

    Temporary files are included; a link to a folder is a file. Adds S3 keys that no URI can express, such as `a//b`, to
    `unnamed`; adds paths that cannot be looked into to `closed`, with the reason: without it, they raise an error.
    """
    if uri.is_s3:
        return sorted(itertools.starmap(Entry, s3.walk(uri, unnamed=[] if unnamed is None else unnamed)))

    def refuse(error: OSError) -> None:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG) and closed is not None:
            closed[os.path.relpath(error.filename, uri)] = os.strerror(error.errno)
        elif not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    entries = []
    for place, folders, names in os.walk(uri, onerror=refuse):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in [*names, *links]:
            path = os.path.join(place, name)
            try:
                status = os.lstat(path)
            except OSError as error:
                refuse(error)
                continue
            if name not in links and stat.S_ISLNK(status.st_mode):
                with contextlib.suppress(OSError):  # a broken link counts with its own size
                    status = os.stat(path)
            entries.append(Entry(path=os.path.relpath(path, uri), size=status.st_size, modified=status.st_mtime))
    return sorted(entries)


def remove(uri: URI) -> None:
    """Delete everything at and below `uri`, if there is anything."""
    if uri.is_s3:
        s3.remove(uri)
        return
    if os.path.islink(uri) or not os.path.isdir(uri):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(uri)
        return
    while os.path.isdir(uri):
        with contextlib.suppress(FileNotFoundError):  # another process removes files here, too
            shutil.rmtree(uri)
            return


def check_space(uri: URI, *, needed: int) -> None:
    """Raise `DiskFull` unless `needed` bytes fit below `uri`; S3 does not report its free space."""
    if not uri.is_s3 and free_bytes(uri) < needed:
        raise _disk_full(uri, needed=needed)


def free_bytes(folder: str) -> int:
    """Return the free bytes on the disk of `folder`, which need not exist yet."""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free


def _disk_full(folder: str, *, needed: int) -> DiskFull:
    wanted, free = max(needed / 1e6, 0.1), free_bytes(folder) / 1e6
    return DiskFull(
        f"the disk of {folder} is full: {wanted:,.1f} MB are needed and {free:,.1f} MB free; make room "
        "(`data-to-model gc --dry-run` lists what can be deleted), then run the same command again"
    )


@contextlib.contextmanager
def _errors_as_not_found(uri: URI) -> Iterator[None]:
    """Turn every error that means "no file at `uri`" into one `FileNotFoundError` that names it."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(uri)) from None


@contextlib.contextmanager
def workspace(scratch: URI) -> Iterator[Path]:
    """Make a temporary local folder: below `scratch` if that is local, else in the system's temporary folder."""
    if not scratch.is_s3:
        os.makedirs(scratch, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{_TEMPORARY}files-", dir=None if scratch.is_s3 else scratch) as folder:
        yield Path(folder)


def _flush(path: Path) -> None:
    """Flush the file or folder `path` to disk, so that it survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
