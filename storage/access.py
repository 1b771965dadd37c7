"""Checks of a place in storage before a run: can it be read, can it be written."""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator

from storage import files, s3
from storage.uri import URI, Root, redact_text

_LACKING = (errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of a file system that cannot do something at all."""


def check_readable(uri: URI, *, option: str = "--storage") -> None:
    """Raise `FileNotFoundError` if nothing is below `uri`, `ValueError` naming `option` if it cannot be read.

    It writes nothing, and takes at most 10 s if the server does not answer.
    """
    missing: tuple[type[OSError], ...] = () if uri.is_s3 else (FileNotFoundError,)  # on S3 its bucket is
    with errors_as_value_error(uri, option=option, verb="read"), contextlib.suppress(*missing):
        if s3.has_content(uri) if uri.is_s3 else os.listdir(uri):
            return
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(uri))


def check_writable(root: Root) -> float:
    """Check that files can be created below `root`, but none twice; return the time by the storage's clock, in s.

    It leaves only the folder itself. Raises `ValueError`; within 10 s if the server does not answer.
    """
    with errors_as_value_error(root, option="--storage", verb="write to"):
        if root.is_s3:
            s3.has_content(root)  # with SeaweedFS, a write would create a missing bucket
        elif not os.path.isdir(root.parent):
            raise FileNotFoundError(errno.ENOENT, "the folder above it does not exist (is its disk mounted?)", root)
        else:
            os.makedirs(root, exist_ok=True)
        probe = root.child(f"_probe-{uuid.uuid4().hex}")
        try:
            files.put(probe, b"first", mode="create")
            files.put(probe, b"second", mode="create")
        except FileExistsError:  # every commit relies on this refusal
            return files.entry(probe).modified
        finally:
            files.remove(probe)
    advice = "choose storage that supports conditional writes (If-None-Match)"
    raise ValueError(f"--storage: cannot write to {root}: it allows creating an existing file again; {advice}")


@contextlib.contextmanager
def errors_as_value_error(uri: URI, *, option: str, verb: str) -> Iterator[None]:
    """Turn every failure to reach `uri` into one `ValueError` that names `option` and the next step."""
    try:
        yield
        return
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _LACKING and (error.filename2 or not error.filename):  # of a link, or a flush
            reason = f"its file system lacks {'hard links' if error.filename2 else 'fsync'} ({reason})"
        if not uri.is_s3:
            reason = f"{reason}; choose another folder"
        elif isinstance(error, FileNotFoundError):
            reason = "its bucket does not exist; create it or choose another"
    except ValueError as error:
        if not uri.is_s3:
            raise
        reason = f"{' '.join(str(error).split())}; {s3.ADVICE}"
    raise ValueError(f"{option}: cannot {verb} {uri}: {redact_text(reason)}")
