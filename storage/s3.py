"""The operations of `storage.files` on S3, each retried by `storage.retry`."""

import contextlib
import errno
import functools
import itertools
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from storage.retry import with_retries
from storage.uri import URI

ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""Environment variables with the address of an S3 server other than Amazon's."""

_TIMEOUT_S = (10, 30)
"""Time-outs of one try: to connect, and between two reads."""
LONGEST_TRY_S = sum(_TIMEOUT_S)
"""Seconds after which a try that got no answer is given up."""
_QUICK_TIMEOUT_S = (3, 3)
"""The same for checking that the server answers; two tries end within 10 s."""
_TRIES_OF_OTHERS = 5
"""Number of tries, within seconds, of a request that is not retried by `storage.retry`."""
PIECE_BYTES = 2**24
"""Bytes of a large file that are held in memory, and retried, at a time."""
_MOST_PIECES = 10_000
"""Maximum number of pieces of one file on S3."""
_KEYS_PER_REQUEST = 1000
"""Maximum number of files that S3 deletes in one request."""
_PASSING = ("InternalError", "ServiceUnavailable", "SlowDown")
"""Error codes of a single file in such a request for which a retry may help."""
_CREATOR = "creator"
"""Metadata key with the creator's token, by which a creator recognises its own file."""
_CONDITION_FAILED = ("PreconditionFailed", "412")


class _Lapsed(Exception):
    """The lease of the caller of `remove_listed` has lapsed."""


class Overwritten(OSError):
    """A file is no longer the version that was listed or whose first piece was read."""


def read(uri: URI, *, etag: str | None = None, **which: str) -> bytes:
    """Read a whole file, or the range `which`, in one request: the parallel ones of s3fs could be of two versions.

    Raises `Overwritten` if the file's ETag is not `etag`, if given.
    """
    from fsspec.asyn import sync  # comes with s3fs

    client, (bucket, key) = _client(), _split(uri)
    required = {"IfMatch": f'"{etag}"'} if etag else {}

    async def body() -> bytes:
        response = await client._call_s3("get_object", Bucket=bucket, Key=key, **which, **required)
        async with response["Body"] as content:
            return bytes(await content.read())

    try:
        found: bytes = with_retries(lambda: sync(client.loop, body))
    except OSError as error:
        if _code(error) in _CONDITION_FAILED:
            raise Overwritten(errno.EIO, "it was overwritten while being read", str(uri)) from None
        if isinstance(error, PermissionError):  # of this file alone: archived, or under another key
            raise PermissionError(errno.EACCES, str(error), str(uri)) from None
        raise
    return found


def pieces(uri: URI, *, etag: str | None = None) -> Iterator[bytes]:
    """Yield a whole file piece by piece, all from one version of it: the one with `etag` if given."""
    size, _, found = described(uri)
    for start in range(0, size, PIECE_BYTES):
        yield read(uri, etag=etag or found, Range=f"bytes={start}-{start + PIECE_BYTES - 1}")


def described(uri: URI) -> tuple[int, float, str]:
    """Return size (bytes), time of the last write (seconds since 1970) and ETag of one file."""
    found = _head(uri)
    return int(found["ContentLength"]), found["LastModified"].timestamp(), found["ETag"].strip('"')


def replace(uri: URI, content: bytes) -> None:
    """Write a file, replacing any existing one."""
    with_retries(lambda: _client().pipe_file(uri, content))


def upload(uri: URI, path: Path) -> None:
    """Upload a local file, replacing any existing one; a file of several pieces appears once all are uploaded."""
    piece_bytes = max(PIECE_BYTES, -(-path.stat().st_size // _MOST_PIECES))
    with path.open("rb") as file:
        first = file.read(piece_bytes)
        if len(first) < piece_bytes:
            replace(uri, first)
        else:
            upload_pieces(uri, itertools.chain([first], iter(functools.partial(file.read, piece_bytes), b"")))


def upload_pieces(uri: URI, contents: Iterable[bytes]) -> None:
    """Upload a file in several pieces, each retried by itself; the file appears once all are uploaded."""
    client, (bucket, key) = _client(), _split(uri)

    def call(verb: str, **more: Any) -> Any:
        return with_retries(lambda: client.call_s3(verb, Bucket=bucket, Key=key, **more))

    upload_id = call("create_multipart_upload")["UploadId"]
    parts, sent = [], 0
    try:
        for number, content in enumerate(contents, start=1):
            answer = call("upload_part", UploadId=upload_id, PartNumber=number, Body=content)
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            sent += len(content)
        try:
            call("complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": parts})
        except FileNotFoundError:  # an earlier try, whose reply was lost, may have completed it
            if described(uri)[0] != sent:
                raise
    except BaseException:
        with contextlib.suppress(Exception):  # leftover pieces are invisible but take space
            client.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id)
        raise


def create(uri: URI, content: bytes) -> None:
    """Create a file; raises `FileExistsError`, except for a file that an earlier try of the same call created."""
    token = uuid.uuid4().hex

    def attempt() -> None:
        try:
            _client().pipe_file(uri, content, mode="create", Metadata={_CREATOR: token})
        except Exception as error:
            if _code(error) in _CONDITION_FAILED:
                raise FileExistsError(errno.EEXIST, "exists already", str(uri)) from None
            raise

    try:
        with_retries(attempt)
    except FileExistsError:
        # The reply to an earlier try may have been lost: to ours, or to one of the HTTP client, which repeats PUTs.
        if _creator(uri) != token:
            raise


def _creator(uri: URI) -> str | None:
    try:
        creator: str | None = _head(uri).get("Metadata", {}).get(_CREATOR)
    except FileNotFoundError:  # removed meanwhile
        return None
    return creator


def _head(uri: URI) -> Any:
    bucket, key = _split(uri)
    return with_retries(lambda: _client().call_s3("head_object", Bucket=bucket, Key=key))


def names(folder: URI) -> set[str]:
    """Return the names of the files and folders directly below `folder`."""
    prefix = folder.removeprefix("s3://") + "/"
    entries = with_retries(lambda: _client().ls(folder, detail=False, refresh=True))
    return {entry.removeprefix(prefix).rstrip("/") for entry in entries if entry.startswith(prefix)}


def walk(folder: URI, *, unnamed: list[str], folders: list[str]) -> Iterator[tuple[str, int, float, str]]:
    """Yield path, size, time of the last write and ETag of every file below `folder`.

    Append keys that no URI can express to `unnamed`, and to `folders` the paths of empty files that end in `/`:
    consoles' markers.
    """
    prefix = folder.removeprefix("s3://") + "/"
    try:
        found = with_retries(lambda: _client().find(folder, detail=True))
    except FileNotFoundError:
        return
    for key, about in found.items():
        path = key.removeprefix(prefix)
        if not key.startswith(prefix):
            continue
        if f"/{path}".endswith("/") and not about["size"]:
            folders += [path] if path else []
            continue
        if {"", ".", ".."}.isdisjoint(path.split("/")):
            yield path, int(about["size"]), about["LastModified"].timestamp(), about["ETag"].strip('"')
        else:
            unnamed.append(path)


def opened(uri: URI) -> Any:
    """Open a file of which only some parts are read."""
    return with_retries(lambda: _client().open(uri, "rb", block_size=2**20))


def remove(uri: URI) -> None:
    """Delete everything at and below `uri`."""
    try:
        found = with_retries(lambda: _client().find(uri))
    except FileNotFoundError:
        return
    remove_listed([f"s3://{path}" for path in found])


def remove_listed(places: Sequence[str], *, has_lapsed: Callable[[], bool] = lambda: False) -> bool:
    """Delete the files `places` of one bucket; return false, and send nothing more, once `has_lapsed()`.

    That is asked before every request, also before one is tried again.
    """
    try:
        for start in range(0, len(places), _KEYS_PER_REQUEST):
            with_retries(functools.partial(_remove, places[start : start + _KEYS_PER_REQUEST], has_lapsed))
    except _Lapsed:
        return False
    return True


def has_content(uri: URI) -> bool:
    """Return whether there is a file below `uri`; waits at most 10 s for an answer."""
    bucket, key = _split(uri)
    prefix = "" if key == "/" else f"{key}/"
    return bool(_quick_client().call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1).get("Contents"))


def check_bucket(uri: URI) -> None:
    """Check, within 10 s, that the bucket exists: with SeaweedFS, a write would create a missing bucket."""
    _quick_client().call_s3("head_bucket", Bucket=_split(uri)[0])


def _remove(places: Sequence[str], has_lapsed: Callable[[], bool]) -> None:
    if has_lapsed():
        raise _Lapsed
    bucket = _split(places[0])[0]
    objects = {"Objects": [{"Key": _split(place)[1]} for place in places], "Quiet": True}
    for failed in _client().call_s3("delete_objects", Bucket=bucket, Delete=objects).get("Errors", []):
        told = f"s3://{bucket}/{failed.get('Key')} cannot be removed ({failed.get('Code')})"
        raise ConnectionError(told) if failed.get("Code") in _PASSING else OSError(errno.EIO, told)


def for_pyarrow() -> Any:
    """Return a file system for libraries that take pyarrow's; it reads the same configuration as all of this module.

    pyarrow's own client ignores `endpoint_url` in `~/.aws/config`.
    """
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return PyFileSystem(FSSpecHandler(_connect(*_TIMEOUT_S, tries=_TRIES_OF_OTHERS)))


def _client() -> Any:
    return _connect(*_TIMEOUT_S)  # fsspec keeps one per process


def _quick_client() -> Any:
    for name in ENDPOINTS:
        # The address is visible in errors and, as part of a job's environment, in Ray's dashboard.
        if "@" in os.environ.get(name, "") or "?" in os.environ.get(name, ""):
            raise ValueError(
                f"{name} must not contain a user name, password or query; set keys in their own "
                "variables (AWS_ACCESS_KEY_ID, ...)"
            )
    return _connect(*_QUICK_TIMEOUT_S, tries=2, skip_instance_cache=True)


def _connect(connect_s: int, read_s: int, *, tries: int = 1, skip_instance_cache: bool = False) -> Any:
    import s3fs  # only where S3 is used: the import takes most of a second

    s3 = s3fs.S3FileSystem(
        use_listings_cache=False,
        skip_instance_cache=skip_instance_cache,
        config_kwargs={
            "retries": {"mode": "standard", "total_max_attempts": tries},
            "connect_timeout": connect_s,
            "read_timeout": read_s,
        },
    )
    s3.retries = 1  # the retries of s3fs, on top of botocore's
    return s3


def _code(error: Exception) -> str | None:
    response = getattr(error.__cause__, "response", None) or {}
    code: str | None = response.get("Error", {}).get("Code")
    return code


def _split(uri: str) -> tuple[str, str]:
    """Split an S3 URI into bucket and key; the bucket itself gets the key `/`, where no file can be."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key or "/"
