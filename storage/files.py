"""Verbs over single files, with the same guarantees on a local disk and on S3.

What is written is whole or absent, never torn. On a disk a file is written beside its place, flushed, and moved or
linked there; S3 does as much by itself.
"""

import contextlib
import dataclasses
import errno
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.uri import URI, Root, masked

_TRIES = 8
"""How often one S3 request is tried; botocore waits up to 20 s between two (its `standard` mode)."""
_CONNECT_S = 10
"""How long one try may take to connect."""
_CHECK_CONNECT_S = 3
"""The same in `check_readable` and `check_writable`, which try twice and so end within 10 s when nobody answers."""
_KEYS_PER_REQUEST = 1000
"""How many files S3 removes at once."""
_S3_CLIENTS = ("aiobotocore", "aiohttp", "botocore")
"""Packages below s3fs whose errors may come through."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One file as a listing shows it."""

    path: str
    """Relative to the folder that was listed."""
    size: int
    """Bytes."""
    modified: float
    """When it was last written: seconds since 1970 by the storage's clock."""


def read(uri: URI) -> bytes:
    """The whole file, from one version of it; raises `FileNotFoundError`."""
    with _absence_told(uri):
        if not uri.is_s3:
            return Path(uri).read_bytes()
        # One request: the parallel ranges that s3fs prefers could come from two versions.
        content: bytes = _s3().cat_file(uri, max_concurrency=1)
        return content


def size(uri: URI) -> int:
    """Size in bytes; raises `FileNotFoundError`, also for a folder."""
    with _absence_told(uri):
        if uri.is_s3:
            bucket, key = _split(uri)
            return int(_s3().call_s3("head_object", Bucket=bucket, Key=key)["ContentLength"])
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

    Raises `FileExistsError` when something is there already. A write whose reply was lost may be met again as its own
    file: compare before giving up.
    """
    if uri.is_s3:
        _create_on_s3(uri, content)
        return
    with _beside(uri) as temporary:
        temporary.write_bytes(content)
        _flush(temporary)
        os.link(temporary, uri)
    _flush(Path(uri).parent)


def replace(uri: URI, content: bytes) -> None:
    """Write `content`, in place of what is there; readers see the old bytes or the new ones."""
    if uri.is_s3:
        _s3().pipe_file(uri, content)
        return
    with _beside(uri) as temporary:
        temporary.write_bytes(content)
        _flush(temporary)
        os.replace(temporary, uri)
    _flush(Path(uri).parent)


def children(uri: URI) -> list[str]:
    """Sorted names of the files and folders directly below `uri`, none when there is nothing.

    A folder whose files were removed may still be among them.
    """
    try:
        if uri.is_s3:
            folder = uri.removeprefix("s3://") + "/"
            entries = _s3().ls(uri, detail=False, refresh=True)
            names = {entry.removeprefix(folder).rstrip("/") for entry in entries if entry.startswith(folder)}
        else:
            names = set(os.listdir(uri))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if name and not name.startswith(".tmp-"))


def walk(uri: URI) -> list[Entry]:
    """Every file below `uri` at any depth, sorted by path, none when there is nothing.

    Also those that `children` leaves out. A link to a folder is listed and not followed; S3 keys that no URI can name,
    such as `a//b`, are left out. Raises `PermissionError` for a folder that cannot be looked into.
    """
    found = _walk_on_s3(uri) if uri.is_s3 else _walk_on_disk(uri)
    return sorted(found, key=lambda entry: entry.path)


def remove(uri: URI) -> None:
    """Remove everything at and below `uri`, if there is anything."""
    if uri.is_s3:
        _remove_on_s3(uri)
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
            _check_bucket(root)
        else:
            os.makedirs(root, exist_ok=True)
        if _refuses_to_overwrite(root):
            return
    reason, advice = "it lets a file be created twice", "choose a storage with conditional writes (If-None-Match)"
    raise ValueError(f"--storage: cannot write to {root}: {reason}; {advice}")


def is_trouble(error: Exception) -> bool:
    """Whether `error` is how a storage says that it cannot be reached or refuses, rather than a fault of ours."""
    # botocore has many that are no OSError: no credentials, no endpoint, no region.
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _S3_CLIENTS


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
        bucket, key = _split(uri)
        prefix = "" if key == "/" else f"{key}/"
        return bool(_quick_s3().call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1).get("Contents"))
    try:
        return bool(os.listdir(uri))
    except FileNotFoundError:
        return False


def _check_bucket(root: Root) -> None:
    """Return when the bucket answers; seen with SeaweedFS: a mere write would make a missing one."""
    _quick_s3().call_s3("head_bucket", Bucket=_split(root)[0])


def _refuses_to_overwrite(root: Root) -> bool:
    """Whether a second `create` of one file is refused, as every commit relies on."""
    probe = root.child(f"_probe-{uuid.uuid4().hex}")
    create(probe, b"")
    try:
        create(probe, b"")
    except FileExistsError:
        return True
    finally:
        remove(probe)
    return False


def _s3() -> Any:
    s3 = _connect(tries=_TRIES, connect_s=_CONNECT_S, read_s=60)  # fsspec keeps one per process
    s3.retries = 2  # above botocore's tries, for a reply that breaks off
    return s3


def _quick_s3() -> Any:
    """A client that does not wait long for an answer."""
    s3 = _connect(tries=2, connect_s=_CHECK_CONNECT_S, read_s=_CHECK_CONNECT_S, skip_instance_cache=True)
    s3.retries = 1
    return s3


def _connect(*, tries: int, connect_s: int, read_s: int, skip_instance_cache: bool = False) -> Any:
    import s3fs  # only where S3 is used: the import takes most of a second

    return s3fs.S3FileSystem(
        use_listings_cache=False,
        skip_instance_cache=skip_instance_cache,
        config_kwargs={
            "retries": {"mode": "standard", "total_max_attempts": tries},
            "connect_timeout": connect_s,
            "read_timeout": read_s,
        },
    )


def _split(uri: URI) -> tuple[str, str]:
    """Bucket and key of an S3 URI; the bucket itself has the key `/`, at which nothing ever is."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key or "/"


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


def _walk_on_s3(folder: URI) -> Iterator[Entry]:
    prefix = folder.removeprefix("s3://") + "/"
    try:
        found = _s3().find(folder, detail=True)
    except FileNotFoundError:
        return
    for key, about in found.items():
        path = key.removeprefix(prefix)
        if key.startswith(prefix) and {"", ".", ".."}.isdisjoint(path.split("/")):
            yield Entry(path=path, size=int(about["size"]), modified=about["LastModified"].timestamp())


def _remove_on_s3(uri: URI) -> None:
    bucket, _ = _split(uri)
    try:
        found = _s3().find(uri)
    except FileNotFoundError:
        return
    keys = [path.removeprefix(f"{bucket}/") for path in found]
    for start in range(0, len(keys), _KEYS_PER_REQUEST):
        listed = [{"Key": key} for key in keys[start : start + _KEYS_PER_REQUEST]]
        answer = _s3().call_s3("delete_objects", Bucket=bucket, Delete={"Objects": listed, "Quiet": True})
        for failed in answer.get("Errors", []):
            raise OSError(errno.EIO, f"cannot be removed ({failed.get('Code')})", f"s3://{bucket}/{failed.get('Key')}")


def _create_on_s3(uri: URI, content: bytes) -> None:
    for tried in range(_TRIES):
        try:
            _s3().pipe_file(uri, content, mode="create")
            return
        except OSError as error:
            response = getattr(error.__cause__, "response", None) or {}
            code = response.get("Error", {}).get("Code")
            if code in ("PreconditionFailed", "412"):
                raise FileExistsError(errno.EEXIST, "exists already", str(uri)) from None
            # Another request on the same key was under way; AWS asks to try again, nobody may have won.
            if code not in ("ConditionalRequestConflict", "409") or tried + 1 == _TRIES:
                raise
        time.sleep(0.1 * 2**tried)


@contextlib.contextmanager
def _absence_told(uri: URI) -> Iterator[None]:
    """Every way in which no file is at `uri` becomes one `FileNotFoundError` that names it."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(uri)) from None


@contextlib.contextmanager
def _beside(uri: URI) -> Iterator[Path]:
    """A fresh path in the folder of `uri`, removed at the end if it is still there."""
    folder = Path(uri).parent
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


def _flush(path: Path) -> None:
    """Make what was written to `path` (a file or a folder) survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
