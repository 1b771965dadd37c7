"""Transfer of files between a local disk and storage, piece by piece: a file of any size never fills the memory."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from storage import files, s3
from storage.failpoints import failpoint
from storage.uri import URI


def pieces(uri: URI, *, etag: str | None = None) -> Iterator[bytes]:
    """Read a whole file piece by piece; on S3, all from one version of it.

    On S3, `etag` is the required version, as in a listing; none accepts any. Raises `FileNotFoundError`, and
    `s3.Overwritten` if the file has another version or was overwritten during the read.
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


def publish(path: Path, uri: URI) -> None:
    """Publish the local file `path` at `uri` in one step, replacing any existing file; it is never partly written.

    If `uri` is on a disk, the file is moved; on S3, `path` stays. Raises `DiskFull` if there is no space.
    """
    if uri.is_s3:
        failpoint("write", uri)
        s3.upload(path, uri)
    else:
        with files.beside(uri, needed=path.stat().st_size) as temporary:
            shutil.move(path, temporary)  # a rename if both are on one disk
            os.chmod(temporary, 0o644)  # as all other files in storage
            failpoint("write", uri)
            files.flush(temporary)
            os.replace(temporary, uri)
        files.flush(Path(uri).parent)
    failpoint("written", uri)


@contextlib.contextmanager
def workspace(scratch: URI) -> Iterator[Path]:
    """Make a temporary local folder: below `scratch` if that is local, else in the system's temporary folder."""
    if not scratch.is_s3:
        os.makedirs(scratch, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-files-", dir=None if scratch.is_s3 else scratch) as folder:
        yield Path(folder)
