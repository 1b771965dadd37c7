"""The operations of `storage.files` on S3, by botocore; transient errors are retried."""

import errno
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from storage.error_policy import EXPIRED_CODES, is_transient_on_s3
from storage.process import in_threads
from storage.uri import URI, redact_text

if TYPE_CHECKING:
    from pyarrow.fs import PyFileSystem
    from s3fs import S3FileSystem

T = TypeVar("T")
_Answer = dict[str, Any]
"""What botocore returns for a request."""

ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""Environment variables with the address of an S3 server other than Amazon's."""
PATIENCE_S = 120.0
"""Seconds during which a request is retried: most outages of an object store are shorter."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0
_TIMEOUT_S = (10, 30)
"""Time-outs of one try: to connect, and between two reads."""
_QUICK_TIMEOUT_S = (3, 3)
"""The same for checking that the server answers; two tries end within 10 s."""
PIECE_BYTES = 2**24
"""Bytes of a large file that are read, held in memory and retried at a time."""
_PART_BYTES = 2**24
"""Bytes of a part of an upload, of which one at a time is in memory; S3 takes no fewer than 5 MiB."""
_DELETED_AT_ONCE = 16
"""Files that are deleted at once, each by a request of its own: some servers lack the one that deletes many."""
_MOST_CONNECTIONS = 64
"""Open connections that a client keeps for the threads that share it."""
_ERRORS: dict[int | str | None, tuple[type[OSError], int]] = {
    "RequestTimeTooSkewed": (OSError, errno.EIO),
    401: (PermissionError, errno.EACCES),
    403: (PermissionError, errno.EACCES),
    404: (FileNotFoundError, errno.ENOENT),
    412: (FileExistsError, errno.EEXIST),
}
"""What S3's code, or else the HTTP status, of a refused request means; 412: a condition of it does not hold."""
ADVICE = "check AWS_ENDPOINT_URL and the AWS_* variables"
"""Next step after most errors."""
_ADVICE = {
    "RequestTimeTooSkewed": "set the clock of this machine",
    **dict.fromkeys(EXPIRED_CODES, "renew the temporary keys, then run the same command again"),
    **dict.fromkeys(("checksum", "NotImplemented"), "try AWS_REQUEST_CHECKSUM_CALCULATION=when_required"),
}
"""Next step after other errors, by S3's code or a word of its message."""


class Overwritten(OSError):
    """A file is no longer the version that was listed or whose first piece was read."""


def with_retries(request: Callable[[], T]) -> T:
    """Call `request`, retrying transient errors for `PATIENCE_S`, at least once, with growing, random pauses.

    Raises `ConnectionError` with the last error and the next step when the time is up; other errors at once.
    """
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

    pauses = wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S)
    stop = stop_after_delay(PATIENCE_S) & stop_after_attempt(2)
    retrying = Retrying(stop=stop, wait=pauses, retry=retry_if_exception(is_transient_on_s3), reraise=True)
    try:
        return retrying(request)
    except Exception as error:
        if not is_transient_on_s3(error):
            raise
        message = redact_text(" ".join(str(getattr(error, "strerror", None) or error).split()))
        raise ConnectionError(
            f"the storage kept failing for {PATIENCE_S:.0f} s, last error: {message}; then run the same command again"
        ) from error


def read(uri: URI, *, etag: str | None = None, **which: Any) -> bytes:
    """Read a whole file, or the range `which`, in one request.

    Raises `Overwritten` if the file's ETag is not `etag`, if given.
    """
    which |= {"IfMatch": f'"{etag}"'} if etag else {}
    try:
        return with_retries(lambda: bytes(_call("get_object", uri, **which)["Body"].read()))
    except FileExistsError:
        raise Overwritten(errno.EIO, "it was overwritten while being read", str(uri)) from None


def pieces(uri: URI, *, etag: str | None = None) -> Iterator[bytes]:
    size, _, newest = described(uri)
    for start in range(0, size, PIECE_BYTES):
        yield read(uri, etag=etag or newest, Range=f"bytes={start}-{start + PIECE_BYTES - 1}")


def described(uri: URI) -> tuple[int, float, str]:
    """Return size (bytes), time of the last write (seconds since 1970) and ETag of one file."""
    head = _request("head_object", uri)
    return int(head["ContentLength"]), head["LastModified"].timestamp(), head["ETag"].strip('"')


def replace(uri: URI, content: bytes | Path) -> None:
    """Write a file, replacing any existing one; a large local file appears once all of its parts are there."""
    if isinstance(content, bytes):
        _request("put_object", uri, Body=content)
    else:
        put = _refusals(uri)(lambda: _s3fs().put_file(content, uri, chunksize=_PART_BYTES, max_concurrency=1))
        with_retries(put)


def create(uri: URI, content: bytes) -> None:
    """Create a file; raises `FileExistsError`, except for the same bytes: the reply to an earlier try may be lost."""
    try:
        _request("put_object", uri, Body=content, IfNoneMatch="*")
    except FileExistsError:
        with suppress(FileNotFoundError):  # removed meanwhile
            if read(uri) == content:
                return
        raise


def names(folder: URI) -> set[str]:
    prefix, keys = _prefix(folder), set[str]()
    for page in _pages(folder, Delimiter="/"):
        keys |= {entry["Key"] for entry in page.get("Contents", [])}
        keys |= {entry["Prefix"] for entry in page.get("CommonPrefixes", [])}
    return {key.removeprefix(prefix).rstrip("/") for key in keys}


def walk(folder: URI, *, unnamed: list[str]) -> Iterator[tuple[str, int, float, str]]:
    """Yield path, size, time of the last write and ETag of every file below `folder`.

    Append keys that no URI can express to `unnamed`; skip empty files that end in `/`, which are consoles' markers.
    """
    prefix = _prefix(folder)
    with suppress(FileNotFoundError):  # no such bucket
        for entry in itertools.chain.from_iterable(page.get("Contents", []) for page in _pages(folder)):
            path = entry["Key"].removeprefix(prefix)
            if f"/{path}".endswith("/") and not entry["Size"]:
                continue
            if {"", ".", ".."}.isdisjoint(path.split("/")):
                yield path, int(entry["Size"]), entry["LastModified"].timestamp(), entry["ETag"].strip('"')
            else:
                unnamed.append(path)


def remove(uri: URI) -> None:
    bucket, key = _split(uri)
    with suppress(FileNotFoundError):  # no such bucket
        keys = [entry["Key"] for page in _pages(uri) for entry in page.get("Contents", [])]
        keys += [key] if key != "/" else []
        places = [f"s3://{bucket}/{key}" for key in keys]
        list(in_threads(lambda place: _request("delete_object", place), places, threads=_DELETED_AT_ONCE))


def has_content(uri: URI) -> bool:
    """Return whether there is a file below `uri`; raises `FileNotFoundError` without its bucket; waits at most 10 s."""
    return bool(_call("list_objects_v2", uri, Prefix=_prefix(uri), MaxKeys=1, quickly=True).get("Contents"))


def for_pyarrow() -> "PyFileSystem":
    """Return a file system for libraries that take pyarrow's; it reads the same configuration as all of this module.

    pyarrow's own client ignores `endpoint_url` in `~/.aws/config`.
    """
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return PyFileSystem(FSSpecHandler(_s3fs()))


def _s3fs() -> "S3FileSystem":
    import s3fs

    return s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)  # a cached one keeps expired keys


def _pages(folder: URI, **options: str) -> Iterator[_Answer]:
    """Yield the listing of all keys below `folder`, 1,000 at a time."""
    while True:
        page = _request("list_objects_v2", folder, Prefix=_prefix(folder), **options)
        yield page
        if not page.get("IsTruncated"):
            return
        token = page.get("NextContinuationToken")
        if token in (None, options.get("ContinuationToken")):  # some servers do this for ever
            raise OSError(errno.EIO, "the server repeats a page of its listing", str(folder))
        options["ContinuationToken"] = token


def _request(verb: str, uri: str, **arguments: Any) -> _Answer:
    return with_retries(lambda: _call(verb, uri, **arguments))


def _call(verb: str, uri: str, *, quickly: bool = False, **arguments: Any) -> _Answer:
    """Send one request about the file or bucket `uri` to S3; raises a refusal of S3 as an `OSError` of its kind."""
    bucket, key = _split(uri)
    if verb.endswith("object"):
        arguments["Key"] = key
    aws = frozenset(item for item in os.environ.items() if item[0].startswith("AWS_"))
    with _refusals(uri):
        client = _client(quickly, os.getpid(), aws)
        answer: _Answer = getattr(client, verb)(Bucket=bucket, **arguments)
    return answer


@contextmanager
def _refusals(uri: str) -> Iterator[None]:
    """Raise a refusal by S3 or by its client, also one that s3fs has translated, with its code and the next step."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except BotoCoreError as error:  # no connection, no keys, no region
        raise OSError(errno.EIO, f"{redact_text(' '.join(str(error).split()))}; {ADVICE}", str(uri)) from error
    except (ClientError, OSError) as error:
        refusal = error if isinstance(error, ClientError) else error.__cause__
        if not isinstance(refusal, ClientError):
            raise
        status = refusal.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if refusal.operation_name == "HeadObject" and status in (400, 403):
            _call("list_objects_v2", uri, MaxKeys=1)  # is refused as well, with the reason: that of a HEAD has no body
        code, message = (refusal.response.get("Error", {}).get(name, "") for name in ("Code", "Message"))
        if code in EXPIRED_CODES:
            _client.cache_clear()  # the next try reads the keys again
        usual = ADVICE if (status or 0) < 500 else "check the server at AWS_ENDPOINT_URL"
        advice = _ADVICE.get("checksum" if "checksum" in message else code, usual)
        kind, number = _ERRORS.get(code) or _ERRORS.get(status) or (OSError, errno.EIO)
        raise kind(number, f"{message or refusal} ({code}); {advice}", str(uri)) from refusal


@functools.lru_cache(maxsize=4)
def _client(quickly: bool, process: int, environment: frozenset[tuple[str, str]]) -> object:
    """Connect; a forked process, or one whose `environment` changed, needs another client."""
    from botocore.config import Config  # only where S3 is used: the import takes a quarter of a second
    from botocore.session import get_session

    for name in ENDPOINTS:
        # The address is visible in errors and, as part of a job's environment, in Ray's dashboard.
        if "@" in os.environ.get(name, "") or "?" in os.environ.get(name, ""):
            raise ValueError(
                f"{name} must not contain a user name, password or query; set keys in their own "
                "variables (AWS_ACCESS_KEY_ID, ...)"
            )
    connect_s, read_s = _QUICK_TIMEOUT_S if quickly else _TIMEOUT_S
    config = Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"mode": "standard", "total_max_attempts": 2 if quickly else 1},
        max_pool_connections=_MOST_CONNECTIONS,
    )
    return get_session().create_client("s3", config=config)


def _prefix(folder: URI) -> str:
    key = _split(folder)[1]
    return "" if key == "/" else f"{key}/"


def _split(uri: str) -> tuple[str, str]:
    """Split an S3 URI into bucket and key; the bucket itself gets the key `/`, where no file can be."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key or "/"
