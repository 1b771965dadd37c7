"""Listing of the user's folder: its images and Parquet files with checksums, and what is left out."""

import dataclasses
import functools
import hashlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from storage import files
from storage.files import Entry
from storage.terminal import count
from storage.uri import URI
from tasks.jobs.spec import UserFile
from tasks.planning import file_kinds, system_files
from tasks.planning.split_names import LAYOUT

_SHOWN = 5
"""Most skipped files named per reason."""


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Files below the user's folder that are not read, for one reason."""

    reason: str
    count: int
    first: list[str]
    """Paths of the first few, relative to the folder."""

    def __str__(self) -> str:
        """Return a summary of one line."""
        more = ", ..." if self.count > len(self.first) else ""
        files = "1 file is" if self.count == 1 else f"{self.count:,} files are"
        return f"{files} left out ({self.reason}): {', '.join(self.first)}{more}"


@dataclasses.dataclass(frozen=True)
class Listing:
    """Files below a folder; either images or Parquet files, never both."""

    parquet: list[Entry]
    images: list[Entry]
    others: list[str]
    """Paths of other files that the user may mean as images; folders, which may be empty, end in `/`."""
    skipped: defaultdict[str, list[str]]
    """Paths that are left out, by reason."""

    def skip(self, paths: Mapping[str, Sequence[str]]) -> None:
        """Leave out more files, by reason."""
        for reason, its in paths.items():
            self.skipped[reason] += its

    def left_out(self) -> tuple[LeftOut, ...]:
        """Count the skipped files by reason, in a fixed order."""
        return tuple(
            LeftOut(reason=reason, count=len(paths), first=[_shown(path) for path in sorted(paths)[:_SHOWN]])
            for reason, paths in sorted(self.skipped.items())
        )


def below(uri: URI, *, option: str, single: Entry | None = None, layout: str = LAYOUT) -> Listing:
    """List the files below `uri`, or only `single`; raise `ValueError` unless they are images or Parquet files."""
    unnamed: list[str] = []
    closed: list[str] = []
    folders: list[str] = []
    listing = Listing([], [], [], defaultdict(list))
    for entry in [single] if single else files.walk(uri, unnamed=unnamed, closed=closed, folders=folders):
        _sort(entry, uri, listing)
    for path in closed:
        if not (reason := system_files.reason(path)):
            raise ValueError(
                f"{option}: {uri.child(_shown(path))} cannot be read: Permission denied; make it readable, or move "
                f"it out of {uri}"
            )
        listing.skipped[reason].append(path)
    if unnamed:
        listing.skipped["part of the key is empty, '.' or '..'; rename them"] += unnamed
    listing.others.extend(path for path in folders if not system_files.reason(path.rstrip("/")))
    if listing.parquet and listing.images:
        both = ", and ".join(
            f"{count(len(entries), kind)}, such as {_shown(entries[0].path)}"
            for kind, entries in (("Parquet file", listing.parquet), ("image", listing.images))
        )
        raise ValueError(f"{option}: {uri} holds {both}; move one kind elsewhere, or name the folder of the other")
    if not listing.parquet and not listing.images:
        left_out = "".join(f"; {files}" for files in listing.left_out())
        raise ValueError(f"{option}: there are neither images nor Parquet files in {uri}; {layout}{left_out}")
    return listing


def _sort(entry: Entry, uri: URI, listing: Listing) -> None:
    """Add one file to what it is by its name."""
    name = entry.path.lower()
    if reason := system_files.reason(entry.path):
        listing.skipped[reason].append(entry.path)
    elif name.endswith(file_kinds.PARQUET):
        listing.parquet.append(entry)
    elif name.endswith(file_kinds.IMAGES):
        listing.images.append(entry)
    elif not uri.is_s3 and os.path.isdir(uri.child(entry.path)):
        listing.skipped["links to folders, which are not followed"].append(entry.path)
        listing.others.append(f"{entry.path}/")
    else:
        listing.skipped[file_kinds.why_not_read(name)].append(entry.path)
        listing.others.append(entry.path)


def _shown(path: str) -> str:
    """Escape the bytes of a file name that are not UTF-8: JSON, a terminal or Prefect would not take them."""
    return path.encode(errors="backslashreplace").decode()


def source_entries(
    uri: URI, entries: list[Entry], *, splits: Mapping[str, str], labels: Mapping[str, int], option: str
) -> list[UserFile]:
    """Add checksums, splits and labels, by path, to `entries`; raise `ValueError` for a file that cannot be used."""
    found = []
    for entry, digest in zip(entries, _digests(uri, entries, option=option), strict=True):
        path = entry.path
        try:
            uri.child(path).encode()
        except ValueError as error:  # UnicodeEncodeError is one
            message = f"{option}: the file name {path!r} below {uri} is not allowed: {error}; rename it"
            raise ValueError(message) from None
        label = labels.get(path)
        found.append(UserFile(split=splits[path], label=label, path=path, size=entry.size, digest=digest))
    return found


def _digests(uri: URI, entries: list[Entry], *, option: str) -> list[str]:
    """Return each entry's ETag on S3, else its SHA-256, which reads the file once and is cached per process."""
    if uri.is_s3:
        return [f"etag:{entry.etag}" for entry in entries]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda entry: _sha256(uri.child(entry.path), entry.size, entry.modified, option), entries))


@functools.lru_cache(maxsize=2**20)
def _sha256(path: str, size: int, modified: float, option: str) -> str:
    if not os.path.isfile(path):  # a broken link, or a pipe, whose reading would block
        raise ValueError(f"{option}: {path} is not a regular file; delete it")
    try:
        with open(path, "rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise ValueError(f"{option}: {path} cannot be read: {error.strerror}; make it readable, or delete it") from None
