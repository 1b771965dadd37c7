"""The user's own data: find images or Parquet files below a URI, with their splits and classes."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal

from storage.uri import URI, Root
from tasks.jobs.ingest import content_split
from tasks.jobs.spec import UserFile
from tasks.learning import sources
from tasks.planning import class_folders, file_kinds, label_tables, listing, parquet_names
from tasks.planning.listing import LeftOut, Listing

VERSION = 1
"""Version of this code; add one when a change makes other rows, or other results, from the same files."""
MAX_IN_PROCESS_BYTES = 2**28
"""Total size in bytes up to which ingest in this process takes less time than the start of a Ray job."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserImages:
    """The user's data found below a URI; the same files give the same `digest`."""

    uri: URI
    kind: Literal["images", "parquet"]
    classes: tuple[str, ...]
    """Sorted names of the class folders; empty for Parquet, whose labels are read later."""
    files: tuple[UserFile, ...]
    """Sorted by split and path; the split is empty if the content decides it, `new` for files to predict."""
    labels: str = ""
    """Which folders are the classes, in words; empty for Parquet and for files to predict."""
    test_fraction: float | None = None
    """Share of images that a hash of their content makes test rows; None if folders or names define the splits."""
    left_out: tuple[LeftOut, ...] = ()
    """Other files there, which are skipped, by reason."""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the data in result URIs and of its registered model."""
        return name_of(self.uri)

    @property
    def is_large(self) -> bool:
        """Whether ingest is worth a Ray job: the data is large, in several files that can be spread over nodes."""
        return len(self.files) > 1 and sum(file.size for file in self.files) > MAX_IN_PROCESS_BYTES

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the sorted list of path, size and checksum (or ETag) of every file."""
        listed = sorted((file.path, file.size, file.digest) for file in self.files)
        return hashlib.sha256(json.dumps(listed, separators=(",", ":")).encode()).hexdigest()


def nothing_at(uri: URI, *, option: str, expected: str) -> ValueError:
    """Return the error for a `uri` without files."""
    is_empty = not uri.is_s3 and os.path.isdir(uri)
    return ValueError(f"{option}: {'there are no images in' if is_empty else 'nothing exists at'} {uri}; {expected}")


def check_apart(root: Root, uri: URI, *, option: str) -> None:
    """Raise `ValueError` if results below `root` would be mixed with the user's files at `uri`."""
    if root.lies_in(uri):
        raise ValueError(
            f"--storage must not be below {option}, because results would be mixed with its files: got {root} in {uri}"
        )


def name_of(uri: URI) -> str:
    """Return the folder's name in lower-case ASCII, with other characters replaced by `-`."""
    plain = unicodedata.normalize("NFKD", uri.name).encode("ascii", "ignore").decode().lower()
    name = re.sub("[^a-z0-9]+", "-", plain).strip("-")[:64].strip("-") or "images"
    return f"user-{name}"[:64] if name in sources.known() else name


def find(uri: URI, *, option: str = "--data", test_fraction: float = 0.2) -> UserImages:
    """List the images or Parquet files below `uri`, with splits, classes and checksums.

    `test_fraction` of the images become test rows if the class folders are not below split folders. Raises `ValueError`
    naming `option` if a split or a second class is missing, or the folders can be read in several ways.
    """
    there = listing.below(uri, option=option)
    if there.parquet:
        return _parquet(uri, there, option=option)
    paths = [entry.path for entry in there.images]
    with _naming(uri, option, hint=label_tables.hint(there.others)):
        layout = class_folders.layout(paths, there.others, name=uri.name)
    there.skip(layout.skipped)
    number = {name: label for label, name in enumerate(layout.classes)}
    class_of = {path: str(class_folders.class_of(path, layout.classes)) for path in layout.splits}
    with _naming(uri, option):
        label_tables.check(uri, there.others, class_of)
    of_path = {path: number[name] for path, name in class_of.items()}
    kept = [entry for entry in there.images if entry.path in layout.splits]
    entries = listing.source_entries(uri, kept, splits=layout.splits, labels=of_path, option=option)
    is_split = set(layout.splits.values()) != {""}
    unread = file_kinds.describe_unread(there.skipped, num_read=len(kept))
    more = _missing(layout.classes, entries) if is_split else _by_content(layout.classes, entries, test_fraction)
    return UserImages(
        uri=uri,
        kind="images",
        classes=layout.classes,
        files=tuple(sorted(entries, key=lambda file: (file.split, file.path))),
        labels=layout.where,
        test_fraction=None if is_split else test_fraction,
        left_out=there.left_out(),
        notes=(*unread, *layout.notes, *more),
    )


def _parquet(uri: URI, there: Listing, *, option: str) -> UserImages:
    with _naming(uri, option):
        parquet_names.check_no_table([*itertools.chain(*there.skipped.values())])
        splits, skipped, notes = parquet_names.splits([entry.path for entry in there.parquet])
    there.skip(skipped)
    kept = [entry for entry in there.parquet if entry.path in splits]
    file_kinds.check_shards(splits, option=option)
    entries = listing.source_entries(uri, kept, splits=splits, labels={}, option=option)
    return UserImages(
        uri=uri,
        kind="parquet",
        classes=(),
        files=tuple(sorted(entries, key=lambda file: (file.split, file.path))),
        left_out=there.left_out(),
        notes=tuple(notes),
    )


@contextlib.contextmanager
def _naming(uri: URI, option: str, *, hint: str = "") -> Iterator[None]:
    """Add the option, the folder and a hint to a `ValueError` about paths."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{option}: {uri}: {error}{hint}") from None


def _by_content(classes: tuple[str, ...], listed: list[UserFile], fraction: float) -> Iterator[str]:
    """Describe the split as far as it is known before S3 files are read; raise `ValueError` if it must fail."""
    chosen = f"about {fraction:g}"
    if not content_split.undigested(listed):
        listed = content_split.with_splits(listed, fraction=fraction, classes=classes, sha256={})
        chosen = f"{sum(file.split == 'test' for file in listed):,}"
        yield from _missing(classes, listed)
    yield (
        f"there are no folders train and test: {chosen} of {len(listed):,} images are test rows "
        f"(test_fraction={fraction:g})"
    )


def _missing(classes: tuple[str, ...], listed: Sequence[UserFile]) -> Iterator[str]:
    if not classes:  # Parquet: ingest reports missing classes later
        return
    there = {file.label for file in listed if file.split == "test"}
    if lacking := [name for label, name in enumerate(classes) if label not in there]:
        yield f"there are no test images of class {', '.join(lacking)}, so it cannot be evaluated"
