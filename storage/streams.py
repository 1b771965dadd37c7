"""Files of any size, moved between a local disk and storage a piece at a time, never as a whole in memory."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from storage import files, s3
from storage.hooks import reached
from storage.uri import URI


def pieces(uri: URI, *, etag: str | None = None) -> Iterator[bytes]:
    """Read a whole file piece by piece; on S3 from one version of it.

    Args:
        uri: The file.
        etag: The version that it must be, as a listing on S3 calls it; none: any, and always on a disk.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: It is not that version, or was overwritten meanwhile.
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
    """Move the local file `path` to `uri` in one step, in place of what is there; what is written is whole or absent.

    A local file is gone from `path` afterwards. Raises `DiskFull` when there is no space.
    """
    if uri.is_s3:
        reached("write", uri)
        s3.upload(path, uri)
    else:
        with files.beside(uri, needed=path.stat().st_size) as temporary:
            shutil.move(path, temporary)  # a mere renaming where both lie on one disk
            os.chmod(temporary, 0o644)  # as every other file of storage
            reached("write", uri)
            files.flush(temporary)
            os.replace(temporary, uri)
        files.flush(Path(uri).parent)
    reached("written", uri)


@contextlib.contextmanager
def workspace(scratch: URI) -> Iterator[Path]:
    """Make a local folder that is removed at the end: below `scratch` where that is local, else the system's own."""
    if not scratch.is_s3:
        os.makedirs(scratch, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-files-", dir=None if scratch.is_s3 else scratch) as folder:
        yield Path(folder)
