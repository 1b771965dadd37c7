"""Operations on single files, with the same guarantees on a local disk and on S3.

A written file is complete or absent, never partial. On a disk, a file is written to a temporary path in its folder,
flushed, and then renamed or linked; S3 gives this guarantee itself. `pieces`, `sha256` and `publish` take files of any
size: piece by piece, so that they never fill the memory.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from storage import s3
from storage.error_policy import DiskFull, is_disk_full
from storage.failpoints import failpoint
from storage.uri import URI

_TEMPORARY = ".tmp-"
"""Prefix of the names of temporary files."""
_Source = TypeVar("_Source", bytes, Path)
"""Content of a file: the bytes themselves, or a local file with them."""


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


def read(uri: URI, *, etag: str | None = None) -> bytes:
    """Read a whole file, all from one version of it; raises `FileNotFoundError`.

    On S3, `etag` is the required version, as in a listing; none accepts any. Raises `s3.Overwritten` for another.
    """
    with _errors_as_not_found(uri):
        return s3.read(uri, etag=etag) if uri.is_s3 else Path(uri).read_bytes()


def pieces(uri: URI, *, etag: str | None = None) -> Iterator[bytes]:
    """Read a whole file piece by piece as `read` does; on S3, all from one version of it.

    Raises `FileNotFoundError`, and `s3.Overwritten` also if the file was overwritten during the read.
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
    """Return one file as a listing of its folder does; raises `FileNotFoundError`, also for a folder."""
    with _errors_as_not_found(uri):
        if uri.is_s3:
            return Entry(uri.name, *s3.described(uri))
        found = os.stat(uri)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError
        return Entry(path=uri.name, size=found.st_size, modified=found.st_mtime)


def exists(uri: URI) -> bool:
    """Return whether there is a file at `uri`."""
    with contextlib.suppress(FileNotFoundError):
        return bool(entry(uri))
    return False


def create(uri: URI, content: bytes) -> None:
    """Create a file with `content`; of several writers at once exactly one succeeds.

    Raises `FileExistsError` if the file exists, `DiskFull` if there is no space. If the reply to a write is lost, the
    writer still learns whether the file is its own, even if another writer wrote the same content.
    """
    _publish(uri, content, on_s3=s3.create, on_disk=os.link)


def create_once(uri: URI, content: bytes) -> bool:
    """Create a file with `content` unless it exists; return whether it now holds `content`, whoever wrote it."""
    try:
        create(uri, content)
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            return read(uri) == content
        return False
    return True


def replace(uri: URI, content: bytes) -> None:
    """Write `content`, replacing any existing file in one step: readers see the old bytes or the new ones.

    Raises `DiskFull` if there is no space; the old file then stays.
    """
    _publish(uri, content, on_s3=s3.replace, on_disk=os.replace)


def publish(path: Path, uri: URI) -> None:
    """Publish the local file `path` at `uri` in one step, as `replace` does; a disk moves it, S3 leaves it there."""
    _publish(uri, path, on_s3=s3.upload, on_disk=os.replace)


def children(uri: URI) -> list[str]:
    """Return the sorted names of what is directly below `uri`, also of a folder whose files were deleted.

    On a disk, if a name is returned, then so is every one that was created before it and not deleted; on S3 this holds
    for names that sort in the order of their creation, such as numbered ones.
    """
    try:
        names = s3.names(uri) if uri.is_s3 else _names_on_disk(uri)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if name and not name.startswith(_TEMPORARY))


def walk(
    uri: URI, *, unnamed: list[str] | None = None, closed: list[str] | None = None, folders: list[str] | None = None
) -> list[Entry]:
    """Return every file below `uri` at any depth, sorted by path; empty if nothing is there.

    Temporary files, which `children` leaves out, are included; a link to a folder is a file. Appends to the lists:
    `unnamed` S3 keys that no URI can express, such as `a//b`; `closed` paths that may not be looked into, which raise
    `PermissionError` without it; `folders` those on a disk, and those with a console's marker on S3, with a final `/`.
    """
    keys, there = [] if unnamed is None else unnamed, [] if folders is None else folders
    on_s3 = s3.walk(uri, unnamed=keys, folders=there)  # a generator: lists nothing unless it is used
    found = itertools.starmap(Entry, on_s3) if uri.is_s3 else _walk_on_disk(uri, closed, there)
    return sorted(found, key=lambda entry: entry.path)


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
    """Raise `DiskFull` unless `needed` bytes fit below `uri`; S3, which does not report its free space, passes."""
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
        f"the disk of {folder} is full: {wanted:,.1f} MB are needed and {free:,.1f} MB free; make room, "
        "for example with python -m storage gc, then run the same command again"
    )


def has_content(uri: URI) -> bool:
    if uri.is_s3:
        return s3.has_content(uri)
    try:
        return bool(os.listdir(uri))
    except FileNotFoundError:
        return False


def _names_on_disk(folder: URI) -> set[str]:
    """List `folder`, without temporary files, until two listings agree.

    A signal or a large folder splits a listing into several system calls: it may then miss a file that is created
    meanwhile, but find a later one.
    """
    before: set[str] | None = None
    while before != (names := {name for name in os.listdir(folder) if not name.startswith(_TEMPORARY)}):
        before = names
    return names


def _walk_on_disk(folder: URI, closed: list[str] | None, there: list[str]) -> Iterator[Entry]:
    def refuse(error: OSError) -> None:
        if isinstance(error, PermissionError) and closed is not None and error.filename != folder:
            closed.append(os.path.relpath(error.filename, folder))
        elif not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for place, folders, names in os.walk(folder, onerror=refuse):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        there += [f"{os.path.relpath(os.path.join(place, name), folder)}/" for name in {*folders}.difference(links)]
        for name in [*names, *links]:
            path = os.path.join(place, name)
            try:
                found = os.lstat(path)
            except OSError as error:
                refuse(error)
                continue
            if name not in links and stat.S_ISLNK(found.st_mode):
                with contextlib.suppress(OSError):  # a broken link counts with its own size
                    found = os.stat(path)
            yield Entry(path=os.path.relpath(path, folder), size=found.st_size, modified=found.st_mtime)


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


@contextlib.contextmanager
def _beside(uri: URI, *, needed: int) -> Iterator[Path]:
    """Create a temporary file in the local folder of `uri`; delete it at the end if still there. Raises `DiskFull`."""
    folder = Path(uri).parent
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # the caller would read it as "`uri` exists"
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        handle, name = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY)
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
    uri: URI, source: _Source, *, on_s3: Callable[[URI, _Source], None], on_disk: Callable[[Path, URI], None]
) -> None:
    """Write `source` to `uri` in one step: `on_s3`, or on a disk, `on_disk` of a flushed temporary file."""
    if uri.is_s3:
        failpoint("write", uri)
        on_s3(uri, source)
    else:
        with _beside(uri, needed=len(source) if isinstance(source, bytes) else source.stat().st_size) as temporary:
            if isinstance(source, bytes):
                temporary.write_bytes(source)
            else:
                shutil.move(source, temporary)  # a rename if both are on one disk
                os.chmod(temporary, 0o644)  # as all other files in storage
            failpoint("write", uri)
            _flush(temporary)
            on_disk(temporary, uri)
        _flush(Path(uri).parent)
    failpoint("written", uri)


def _flush(path: Path) -> None:
    """Flush the file or folder `path` to disk, so that it survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
