"""The user's images: find images or Parquet files below a URI, to train on or to predict, and say what they are."""

import functools
import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
from pydantic import BaseModel, SkipValidation

from storage import files, tables
from storage.kinds import RUNS
from storage.manifest import Damaged
from storage.statistics import LeftOut
from storage.uri import FINGERPRINT_LENGTH, URI, ListingURI, Root
from tasks.images import content_split, label_table, layout, listing
from tasks.images.class_names import normal
from tasks.images.listing import NEW, UserFile
from tasks.learning import sources

MAX_IN_PROCESS_BYTES = 2**28
"""Total size in bytes up to which ingest in this process takes less time than the start of a Ray job."""
TO_PREDICT = "expected images, Parquet, or folders with either"
_ABOUT = "about"
_SCHEMA = pa.schema(
    {"split": pa.string(), "label": pa.int64(), "path": pa.string(), "size": pa.int64(), "digest": pa.string()}
)
"""Columns of the file that lists the images, the fields of `UserFile`; everything else is in its metadata."""


class UserImages(BaseModel, frozen=True):
    """The user's images found below a URI; the same files give the same `digest`."""

    uri: URI
    kind: Literal["images", "parquet"]
    classes: tuple[str, ...]
    """Names of the class folders in the order of their labels; of images to predict, the model's. Empty for Parquet,
    whose labels are read later."""
    files: SkipValidation[tuple[UserFile, ...]]
    """Sorted by split and path; the split is `new` for files to predict, and empty if content decides it that is not
    known yet."""
    table: str = ""
    """Table with the labels, as `--labels` names it; empty: the folders are the classes. Does not count in `digest`."""
    labels: str = ""
    """Where the labels are, in words; empty for files to predict."""
    test_fraction: float | None = None
    """Share of images that a hash of their content makes test rows; None if folders or names define the splits."""
    left_out: tuple[LeftOut, ...] = ()
    """Other files there, which are skipped, by reason."""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the data in result URIs and of its registered model: the folder's, in lower-case ASCII and `-`."""
        plain = unicodedata.normalize("NFKD", self.uri.name).encode("ascii", "ignore").decode().lower()
        name = re.sub("[^a-z0-9]+", "-", plain).strip("-")[:64].strip("-") or "images"
        return f"user-{name}"[:64] if name in sources.known() else name

    @property
    def is_large(self) -> bool:
        """Whether ingest is worth a Ray job: the data is large, in several files that can be spread over nodes."""
        return len(self.files) > 1 and sum(file.size for file in self.files) > MAX_IN_PROCESS_BYTES

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of every file's path, size, checksum (or ETag), split and label, and of the classes."""
        content = [self.kind, self.classes, self.files]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    @property
    def is_new(self) -> bool:
        return all(file.split == NEW for file in self.files)


def nothing_at(uri: URI, *, expected: str) -> ValueError:
    is_empty = not uri.is_s3 and os.path.isdir(uri)
    return ValueError(f"--data: {'there are no images in' if is_empty else 'nothing exists at'} {uri}; {expected}")


def check_apart(root: Root, uri: URI) -> None:
    """Raise `ValueError` if results below `root` would be mixed with the user's files at `uri`."""
    if root.lies_in(uri):
        raise ValueError(
            f"--storage must not be below --data, because results would be mixed with its files: got {root} in {uri}"
        )


def find(
    uri: URI, *, test_fraction: float = 0.2, are_grouped: bool = False, labels_from: str | None = None
) -> UserImages:
    """List the images or Parquet files below `uri` to train on, with splits, classes and checksums.

    Args:
        uri: The folder.
        test_fraction: Share of the images that become test rows unless folders or a table define the splits.
        are_grouped: Which images become test rows is not known yet.
        labels_from: The option `--labels`: a table with the labels; None: folders have the names of the classes.

    Raises:
        ValueError: A split or a second class is missing, or the folders can be read in several ways.
    """
    table = label_table.Table.of(labels_from) if labels_from else None
    folder_listing = listing.below(uri, layout=layout.EXPECTED, table=table.uri if table else None)
    paths = [entry.path for entry in folder_listing.entries]
    if table and folder_listing.parquet:
        raise ValueError(f"--labels must be omitted with Parquet files, which hold their own labels, got {table}")
    try:
        if table:
            read = label_table.layout_of(table, label_table.read(table), paths, uri=uri)
        else:
            read = layout.of_parquet(paths) if folder_listing.parquet else layout.of_images(paths, name=uri.name)
    except ValueError as error:
        if table:
            raise ValueError(f"--labels: {table}: {error}") from None
        first = folder_listing.first_folders()
        raise ValueError(f"--data: {uri}: {error}; its first folders are {first}; {layout.EXPECTED}") from None
    number = {name: label for label, name in enumerate(read.classes)}
    labels = {path: number[name] for path, name in read.class_of.items()}
    entries = [entry for entry in folder_listing.entries if entry.path in read.splits]
    user_files: Sequence[UserFile] = listing.user_files(uri, entries, splits=read.splits, labels=labels)
    is_split = "" not in read.splits.values()
    notes = []
    if not is_split:
        chosen = f"about {test_fraction:g}"
        if not are_grouped and not uri.is_s3:  # which lists no SHA-256 but an ETag
            user_files = content_split.with_splits(user_files, fraction=test_fraction, sha256={})
            chosen = f"{sum(file.split == 'test' for file in user_files):,}"
        reason = "the table has no column split" if table else "there are no folders train and test"
        are_test = f"{chosen} of {len(user_files):,} images are test rows (test_fraction={test_fraction:g})"
        notes = [f"{reason}: {are_test}"]
    for reason, others in read.left_out.items():
        folder_listing.skipped[reason] += others
    return UserImages(
        uri=uri,
        kind=folder_listing.kind,
        classes=read.classes,
        files=tuple(user_files),
        table=str(table or ""),
        labels=read.where,
        test_fraction=None if is_split else test_fraction,
        left_out=folder_listing.left_out(),
        notes=tuple(notes),
    )


def find_new(uri: URI, *, classes: Sequence[str]) -> UserImages:
    """List the images or Parquet files at or below `uri` to predict; a folder named after a class gives the label."""
    single = files.entry(uri) if files.exists(uri) else None
    folder = uri if single is None else uri.parent
    folder_listing = listing.below(folder, single=single, layout=TO_PREDICT)
    number = {normal(name): label for label, name in enumerate(classes)}
    labels = {
        entry.path: number[name] for entry in folder_listing.images if (name := layout.class_above(entry.path, number))
    }
    entries = folder_listing.entries
    splits = dict.fromkeys((entry.path for entry in entries), NEW)
    return UserImages(
        uri=folder,
        kind=folder_listing.kind,
        classes=tuple(classes),
        files=listing.user_files(folder, entries, splits=splits, labels=labels),
        left_out=folder_listing.left_out(),
    )


def place(root: Root, images: UserImages) -> ListingURI:
    """Return the URI of the file that lists `images` below `root`: the same images, the same URI."""
    folder = f"{RUNS}/{images.name}-{images.digest[:FINGERPRINT_LENGTH]}"
    return ListingURI(root.child(f"{folder}/listing-{images.digest}.parquet"))


def write(root: Root, images: UserImages) -> ListingURI:
    uri = place(root, images)
    schema = _SCHEMA.with_metadata({_ABOUT: images.model_dump_json(exclude={"files"})})
    rows = pa.table([list(column) for column in zip(*images.files, strict=True)], schema=schema)
    files.put(uri, tables.encode(rows))
    read.cache_clear()  # equal images in another folder have the same URI
    return uri


@functools.lru_cache(maxsize=2)
def read(uri: ListingURI) -> UserImages:
    """Read a list of the user's files; raise `Damaged` if its rows have another SHA-256 than its name says."""
    file = tables.open_parquet(pa.BufferReader(files.read(uri)))
    columns = file.read().to_pydict().values()
    about = json.loads(file.schema_arrow.metadata[_ABOUT.encode()])
    images = UserImages(**about, files=tuple(map(UserFile._make, zip(*columns, strict=True))))
    if place(uri.root, images) != uri:
        raise Damaged(f"{uri} is not what the run wrote (SHA-256), so the job did nothing; run again")
    return images
