"""Listing of the user's folder: its images or Parquet files with checksums, and why other files are left out."""

import dataclasses
import functools
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from storage import files, process
from storage.files import Entry
from storage.statistics import LeftOut
from storage.terminal import count, first
from storage.uri import URI

NEW = "new"
"""Split of images that are only predicted, without a part in training."""
_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif", ".jif")
IMAGES = (*_JPEG, ".png", ".apng", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
"""Endings of image files that are read."""
PARQUET = ".parquet"
_CAMERA_RAW = (".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2")
_UNREAD = (*_CAMERA_RAW, ".heic", ".heif", ".hif", ".jxl", ".jp2", ".psd", ".tga", ".svg", ".eps")
"""Endings of images that are not read: a user who has them expects that they are."""
UNREAD = "images in a format that is not read; convert them to JPEG or PNG"
"""Reason for which such files are left out."""
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
_SYSTEM_FILES = re.compile(
    r"@eadir|@tmp|@sharesnap|@quarantine|#recycle|#snapshot|@recycle|@recently-snapshot|@transcode|~snapshot"  # NAS
    r"|\$recycle\.bin|recycle[rd]|system volume information|found\.000|(eh)?thumbs(_vista)?\.db|desktop\.ini"
    r"|__macosx|icon\r|network trash folder|temporary items|lost\+found|lost\.dir|__pycache__"
    r"|_success|_temporary|_(common_)?metadata|_spark_metadata|_change_data|_symlink_format_manifest|_delta_log"
    r"|_(started|committed)_.*|.*_\$folder\$"
)
"""Names, in lower case, of files and folders that systems and tools put beside the user's own."""
_TABLE_LOG = re.compile(r"(?:.*/)?(?:_delta_log/|\.hoodie/|metadata/[^/]*\.metadata\.json$)")
"""Paths of the logs of Delta Lake, Hudi and Iceberg tables."""
_SHARD = re.compile(r"(?P<name>.*)[-_.](?P<number>\d+)[-_]of[-_](?P<total>\d+)(?!\d)[^/]*\.parquet", re.IGNORECASE)
_SHOWN = 5
"""Most files named per reason."""


class UserFile(NamedTuple):
    """One of the user's own files; there may be a million of them."""

    split: str
    """`train` or `test`; empty if the job chooses by the file's content."""
    label: int | None
    """Number of its class; None for Parquet, whose rows have labels."""
    path: str
    """Path relative to the data's URI."""
    size: int
    """Size in bytes."""
    digest: str
    """`sha256:` or `etag:` and the value at the time of listing."""


@dataclasses.dataclass(frozen=True)
class Listing:
    """Files below a folder: either images or Parquet files, never both."""

    images: list[Entry]
    parquet: list[Entry]
    skipped: defaultdict[str, list[str]]
    """Paths that are left out, by reason."""

    @property
    def kind(self) -> Literal["images", "parquet"]:
        return "images" if self.images else "parquet"

    @property
    def entries(self) -> list[Entry]:
        return self.images or self.parquet

    def first_folders(self) -> str:
        folders = sorted({entry.path[: entry.path.rfind("/") + 1] for entry in self.entries} - {""})
        return first(map(_shown, folders), _SHOWN) or "none"

    def left_out(self) -> tuple[LeftOut, ...]:
        """Count the files that are left out by reason, in a fixed order."""
        return tuple(
            LeftOut(reason=reason, count=len(paths), first=tuple(map(_shown, sorted(paths)[:_SHOWN])))
            for reason, paths in sorted(self.skipped.items())
        )


def below(uri: URI, *, layout: str, single: Entry | None = None, table: URI | None = None) -> Listing:
    """List the files below `uri`, or only `single`; raise `ValueError` unless they are images or Parquet files.

    `layout` says in the message what is expected; `table`, with the labels, is none of the files.
    """
    unnamed: list[str] = []
    closed: dict[str, str] = {}
    listing = Listing([], [], defaultdict(list))
    for entry in [single] if single else files.walk(uri, unnamed=unnamed, closed=closed):
        if uri.child(entry.path) != table:
            _sort(entry, uri, listing)
    for path, problem in closed.items():
        if not (reason := not_data(path)):
            raise ValueError(
                f"--data: {uri}/{_shown(path)[:200]} cannot be read: {problem}; make it readable, or move it out of "
                f"{uri}"
            )
        listing.skipped[reason].append(path)
    if unnamed:
        listing.skipped["part of the key is empty, '.' or '..'; rename them"] += unnamed
    if listing.parquet and listing.images:
        both = ", and ".join(
            f"{count(len(entries), kind)}, such as {_shown(entries[0].path)}"
            for kind, entries in (("Parquet file", listing.parquet), ("image", listing.images))
        )
        raise ValueError(f"--data: {uri} holds {both}; move one kind elsewhere, or name the folder of the other")
    if not listing.entries:
        left_out = "".join(f"; {files}" for files in listing.left_out())
        raise ValueError(f"--data: there are neither images nor Parquet files in {uri}; {layout}{left_out}")
    if listing.parquet and not single:
        _check_complete(listing, name=f"--data: {uri}")
    return listing


def _sort(entry: Entry, uri: URI, listing: Listing) -> None:
    name = entry.path.lower()
    if reason := not_data(entry.path):
        listing.skipped[reason].append(entry.path)
    elif name.endswith(PARQUET):
        listing.parquet.append(entry)
    elif name.endswith(IMAGES):
        listing.images.append(entry)
    elif not uri.is_s3 and os.path.isdir(uri.child(entry.path)):
        listing.skipped["links to folders, which are not followed"].append(entry.path)
    else:
        reason = UNREAD if name.endswith(_UNREAD) else "not images or Parquet, by their file names"
        reason = "archives, which are not opened; unpack them" if name.endswith(_ARCHIVES) else reason
        listing.skipped[reason].append(entry.path)


def not_data(path: str) -> str:
    """Return why `path` is left out whatever it holds, and even if it cannot be read; empty if it may be data."""
    if "/." in f"/{path}":
        return "hidden: the name begins with a dot"
    is_system = any(map(_SYSTEM_FILES.fullmatch, path.lower().split("/")))
    return "system files" if is_system else ""


def _check_complete(listing: Listing, *, name: str) -> None:
    """Raise `ValueError` if Parquet files are missing of a numbered set, or some of their rows count as deleted."""
    if logs := sorted(path for paths in listing.skipped.values() for path in paths if _TABLE_LOG.match(path)):
        raise ValueError(
            f"{name}: {logs[0]} is of a Delta Lake, Hudi or Iceberg table, among whose files are deleted and replaced "
            "rows; export the current rows as Parquet files of their own"
        )
    shards: defaultdict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for shard in filter(None, (_SHARD.fullmatch(entry.path) for entry in listing.parquet)):
        shards[shard["name"], int(shard["total"])][int(shard["number"])] = shard[0]
    for (_, total), present in sorted(shards.items()):
        if missing := total - max(sum(first <= number < first + total for number in present) for first in (0, 1)):
            raise ValueError(
                f"{name}: {missing:,} of {total:,} shards are missing beside {next(iter(present.values()))}; add "
                "them, or rename the others if they are complete without them"
            )


def user_files(
    uri: URI, entries: Sequence[Entry], *, splits: Mapping[str, str], labels: Mapping[str, int]
) -> tuple[UserFile, ...]:
    """Add checksums, splits and labels, by path, to `entries`, and sort them by split and path.

    Raises `ValueError` for a file that cannot be used.
    """
    listed = []
    for entry, digest in zip(entries, _digests(uri, entries), strict=True):
        path = entry.path
        try:
            uri.child(path).encode()
        except ValueError as error:  # UnicodeEncodeError is one
            message = f"--data: the file name {path!r} below {uri} is not allowed: {error}; rename it"
            raise ValueError(message) from None
        listed.append(UserFile(split=splits[path], label=labels.get(path), path=path, size=entry.size, digest=digest))
    return tuple(sorted(listed, key=lambda file: (file.split, file.path)))


def _shown(path: str) -> str:
    """Escape the bytes of a file name that are not UTF-8: JSON, a terminal or Prefect would not take them."""
    return path.encode(errors="backslashreplace").decode()


def _digests(uri: URI, entries: Sequence[Entry]) -> list[str]:
    """Return each entry's ETag on S3, else its SHA-256, which reads the file once and is cached per process."""
    if uri.is_s3:
        return [f"etag:{entry.etag}" for entry in entries]

    def digest_of(entry: Entry) -> str:
        return _sha256(uri.child(entry.path), entry.size, entry.modified)

    return list(process.in_threads(digest_of, entries, threads=min(8, os.cpu_count() or 1)))


@functools.lru_cache(maxsize=2**20)
def _sha256(path: str, size: int, modified: float) -> str:
    if not os.path.isfile(path):  # a broken link, or a pipe, whose reading would block
        raise ValueError(f"--data: {path} is not a regular file; delete it")
    try:
        with open(path, "rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise ValueError(f"--data: {path} cannot be read: {error.strerror}; make it readable, or delete it") from None
