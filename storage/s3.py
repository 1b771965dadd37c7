"""The verbs of `storage.files` on S3, each tried again as `storage.retry` says."""

import contextlib
import errno
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from storage.retry import is_transient, patiently
from storage.uri import URI

ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""Environment variables with the address of a server other than Amazon's."""

_TIMEOUT_S = (10, 30)
"""How long one try may take to connect, and how long it may then be silent."""
_QUICK_TIMEOUT_S = (3, 3)
"""The same for a look at whether anybody answers, which is tried twice and so ends within 10 s."""
PIECE_BYTES = 2**24
"""How much of a large file is in memory at a time, and is tried again after a fault."""
_MOST_PIECES = 10_000
"""Of which S3 makes a file."""
_KEYS_PER_REQUEST = 1000
"""How many files S3 removes at once."""
_PASSING = ("InternalError", "ServiceUnavailable", "SlowDown")
"""What it says of a single one of them when trying again may help."""
_CONDITION_FAILED = ("PreconditionFailed", "412")
"""What it says when `If-Match` or `If-None-Match` does not hold."""


def read(uri: URI) -> bytes:
    """The whole file, from one version of it."""
    # One request: the parallel ranges that s3fs prefers could come from two versions.
    content: bytes = patiently(lambda: _client().cat_file(uri, max_concurrency=1))
    return content


def read_version(uri: URI, etag: str) -> bytes | None:
    """The whole file if it still is the one with `etag`, else none."""
    from fsspec.asyn import sync  # comes with s3fs

    client, (bucket, key) = _client(), _split(uri)
    try:
        content: bytes = patiently(
            lambda: sync(client.loop, _read_if, client, Bucket=bucket, Key=key, IfMatch=f'"{etag}"')
        )
    except OSError as error:
        if _code(error) in _CONDITION_FAILED:
            return None
        raise
    return content


async def _read_if(client: Any, **which: str) -> bytes:
    response = await client._call_s3("get_object", **which)
    async with response["Body"] as body:
        content: bytes = await body.read()
        return content


def pieces(uri: URI, *, etag: str | None = None) -> Iterator[bytes]:
    """The whole file, a piece at a time, from one version of it: the one that S3 calls `etag` if that is given."""
    from fsspec.asyn import sync  # comes with s3fs

    client, (bucket, key) = _client(), _split(uri)
    found = patiently(lambda: client.call_s3("head_object", Bucket=bucket, Key=key))
    for start in range(0, int(found["ContentLength"]), PIECE_BYTES):
        which = {"Bucket": bucket, "Key": key, "IfMatch": f'"{etag}"' if etag else found["ETag"]}
        which["Range"] = f"bytes={start}-{start + PIECE_BYTES - 1}"
        try:
            yield patiently(functools.partial(sync, client.loop, _read_if, client, **which))
        except OSError as error:
            if _code(error) in _CONDITION_FAILED:
                raise OSError(errno.EIO, "it was overwritten while it was read", str(uri)) from None
            raise


def size(uri: URI) -> int:
    """Size in bytes."""
    bucket, key = _split(uri)
    return int(patiently(lambda: _client().call_s3("head_object", Bucket=bucket, Key=key))["ContentLength"])


def replace(uri: URI, content: bytes) -> None:
    """Write, in place of what is there."""
    patiently(lambda: _client().pipe_file(uri, content))


def upload(path: Path, uri: URI) -> None:
    """Write a local file, in place of what is there; one of several pieces is there once all of them are."""
    piece_bytes = max(PIECE_BYTES, -(-path.stat().st_size // _MOST_PIECES))
    with path.open("rb") as file:
        first = file.read(piece_bytes)
        if len(first) < piece_bytes:
            replace(uri, first)
        else:
            upload_pieces(uri, itertools.chain([first], iter(functools.partial(file.read, piece_bytes), b"")))


def upload_pieces(uri: URI, contents: Iterable[bytes]) -> None:
    """Write a file of several pieces, each tried again by itself; it is there once all of them are."""
    client, (bucket, key) = _client(), _split(uri)

    def call(verb: str, **more: Any) -> Any:
        return patiently(lambda: client.call_s3(verb, Bucket=bucket, Key=key, **more))

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
            if size(uri) != sent:
                raise
    except BaseException:
        with contextlib.suppress(Exception):  # what is left of it is never seen, and costs its space
            client.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id)
        raise


def create(uri: URI, content: bytes) -> None:
    """Write where nothing is; raises `FileExistsError`, but not for what an earlier try of its own left there."""
    failed = False

    def attempt() -> None:
        nonlocal failed
        try:
            _client().pipe_file(uri, content, mode="create")
        except Exception as error:
            failed = failed or is_transient(error)
            if _code(error) in _CONDITION_FAILED:
                raise FileExistsError(errno.EEXIST, "exists already", str(uri)) from None
            raise

    try:
        patiently(attempt)
    except FileExistsError:
        # The reply to a try that was taken for failed may have been lost: then this is our own file.
        if not failed or read(uri) != content:
            raise


def names(folder: URI) -> set[str]:
    """What lies directly below `folder`."""
    prefix = folder.removeprefix("s3://") + "/"
    entries = patiently(lambda: _client().ls(folder, detail=False, refresh=True))
    return {entry.removeprefix(prefix).rstrip("/") for entry in entries if entry.startswith(prefix)}


def walk(folder: URI) -> Iterator[tuple[str, int, float, str]]:
    """Path, size, time of last change and ETag of every file below `folder`; not of keys that no URI can name."""
    prefix = folder.removeprefix("s3://") + "/"
    try:
        found = patiently(lambda: _client().find(folder, detail=True))
    except FileNotFoundError:
        return
    for key, about in found.items():
        path = key.removeprefix(prefix)
        if key.startswith(prefix) and {"", ".", ".."}.isdisjoint(path.split("/")):
            yield path, int(about["size"]), about["LastModified"].timestamp(), about["ETag"].strip('"')


def remove(uri: URI) -> None:
    """Remove everything at and below `uri`."""
    bucket, _ = _split(uri)
    try:
        found = patiently(lambda: _client().find(uri))
    except FileNotFoundError:
        return
    keys = [path.removeprefix(f"{bucket}/") for path in found]
    for start in range(0, len(keys), _KEYS_PER_REQUEST):
        patiently(_removal(bucket, keys[start : start + _KEYS_PER_REQUEST]))


def has_content(uri: URI) -> bool:
    """Whether there is a file below `uri`; does not wait long for an answer."""
    bucket, key = _split(uri)
    prefix = "" if key == "/" else f"{key}/"
    return bool(_quick_client().call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1).get("Contents"))


def check_bucket(uri: URI) -> None:
    """Return when the bucket answers, and soon; seen with SeaweedFS: a mere write would make a missing one."""
    _quick_client().call_s3("head_bucket", Bucket=_split(uri)[0])


def _removal(bucket: str, keys: list[str]) -> Callable[[], None]:
    def remove_them() -> None:
        objects = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        for failed in _client().call_s3("delete_objects", Bucket=bucket, Delete=objects).get("Errors", []):
            told = f"s3://{bucket}/{failed.get('Key')} cannot be removed ({failed.get('Code')})"
            raise ConnectionError(told) if failed.get("Code") in _PASSING else OSError(errno.EIO, told)

    return remove_them


def _client() -> Any:
    return _connect(*_TIMEOUT_S)  # fsspec keeps one per process


def _quick_client() -> Any:
    for name in ENDPOINTS:
        # It is shown: in errors, and in Ray's dashboard as part of a job's environment.
        if "@" in os.environ.get(name, "") or "?" in os.environ.get(name, ""):
            raise ValueError(f"{name} must hold no user name, password or query; keys have variables of their own")
    return _connect(*_QUICK_TIMEOUT_S, tries=2, skip_instance_cache=True)


def _connect(connect_s: int, read_s: int, *, tries: int = 1, skip_instance_cache: bool = False) -> Any:
    s3 = _s3fs().S3FileSystem(
        use_listings_cache=False,
        skip_instance_cache=skip_instance_cache,
        config_kwargs={
            "retries": {"mode": "standard", "total_max_attempts": tries},
            "connect_timeout": connect_s,
            "read_timeout": read_s,
        },
    )
    s3.retries = 1  # s3fs's own, above those of botocore
    return s3


@functools.cache
def _s3fs() -> Any:
    import s3fs  # only where S3 is used: the import takes most of a second

    return s3fs


def _code(error: Exception) -> str | None:
    response = getattr(error.__cause__, "response", None) or {}
    code: str | None = response.get("Error", {}).get("Code")
    return code


def _split(uri: URI) -> tuple[str, str]:
    """Bucket and key of an S3 URI; the bucket itself has the key `/`, at which nothing ever is."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key or "/"
