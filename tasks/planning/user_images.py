"""The user's own data: find images or Parquet files below a URI, with their splits and classes."""

import dataclasses
import functools
import hashlib
import json
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Literal

from storage import files
from storage.files import Entry
from storage.uri import URI, Root
from tasks.jobs.ingest import content_split
from tasks.jobs.spec import LeftOut, SourceEntry
from tasks.learning import datasets
from tasks.planning import file_kinds

VERSION = 5
"""Version of this code; add one when a change makes other rows, or other results, from the same files."""
MAX_IN_PROCESS_BYTES = 2**28
"""Total size in bytes up to which ingest in this process takes less time than the start of a Ray job."""
_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_STANDS_IN = ("validation", "valid", "val", "dev")
"""Substitutes for a missing split `test`; the first that exists is used."""
Skipped = defaultdict[str, list[str]]
"""Paths of skipped files by reason."""
_SHOWN = 5  # maximum number of skipped files named per reason
LAYOUT = (
    "expected <class>/*.png (jpg, ...), or train/<class>/... and test/<class>/..., or train-*.parquet and "
    "test-*.parquet"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserData:
    """The user's data found below a URI; the same files give the same `digest`."""

    uri: URI
    kind: Literal["images", "parquet"]
    classes: tuple[str, ...]
    """Sorted names of the class folders; empty for Parquet, whose labels are read later."""
    files: tuple[SourceEntry, ...]
    """Sorted by split and path; the split is empty if the content decides it, `new` for files to predict."""
    test_fraction: float | None = None
    """Share of images that a hash of their content makes test rows; None if folders or names define the splits."""
    left_out: tuple[LeftOut, ...] = ()
    """Other files there, which are skipped, by reason."""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the data in result URIs and of its championship."""
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
    return f"own-{name}"[:64] if name in datasets.known() else name


def find(uri: URI, *, option: str = "--data", test_fraction: float = 0.2) -> UserData:
    """List the images or Parquet files below `uri`, with splits, classes and checksums.

    `test_fraction` of the images become test rows if the class folders are not below split folders. Raises `ValueError`
    naming `option` for no files, Parquet without splits, or fewer than two classes.
    """
    skipped: Skipped = defaultdict(list)
    parquet, images = candidates(uri, skipped, option=option)
    placed = {entry.path: _split_of(entry.path, is_parquet=bool(parquet)) for entry in [*parquet, *images]}
    is_split = bool(parquet) or any(placed.values())
    splits, notes = _splits(uri, set(placed.values()), option=option) if is_split else ({None: ""}, [])
    kept = []
    for entry in [*parquet, *images]:
        split = placed[entry.path]
        if split is None and is_split:
            skipped["no folder or file name contains train or test"].append(entry.path)
        elif split not in splits:
            skipped[f"split {split}: validation rows are taken from train"].append(entry.path)
        elif images and entry.path.count("/") < 1 + is_split:
            skipped["in no class folder"].append(entry.path)
        else:
            kept.append(entry)
    file_kinds.check_shards((entry.path for entry in kept), option=option)
    notes += file_kinds.describe_unread(skipped, num_read=len(kept))
    if not is_split:  # split folders below the first level would count as images of the first level's classes
        below = (entry.path for entry in images if entry.path.count("/") > 1)
        if found := next((path for path in below if path.split("/")[1].lower() in _SPLITS), None):
            raise ValueError(
                f"{option}: {found}: train and test must be the first folders below {uri}, above the class folders"
            )
    split_of = {entry.path: splits[placed[entry.path]] for entry in kept}
    class_of = {entry.path: class_name(entry.path.split("/")[int(is_split)]) for entry in kept} if images else {}
    classes = _classes(uri, class_of, split_of, is_split=is_split, option=option) if images else ()
    number = {name: label for label, name in enumerate(classes)}
    labels = {path: number[name] for path, name in class_of.items()}
    listed = source_entries(uri, kept, splits=split_of, labels=labels, option=option)
    return UserData(
        uri=uri,
        kind="images" if images else "parquet",
        classes=classes,
        files=tuple(sorted(listed, key=lambda file: (file.split, file.path))),
        test_fraction=None if is_split else test_fraction,
        left_out=left_out(skipped),
        notes=(*notes, *(_missing(classes, listed) if is_split else _by_content(classes, listed, test_fraction))),
    )


def class_name(folder: str) -> str:
    """Return the class of a folder: macOS decomposes accents in names, other systems do not, all give one class."""
    return unicodedata.normalize("NFC", folder)


def left_out(skipped: Skipped) -> tuple[LeftOut, ...]:
    """Count the skipped files by reason, in a fixed order."""
    return tuple(
        LeftOut(reason=reason, count=len(paths), first=[_shown(path) for path in sorted(paths)[:_SHOWN]])
        for reason, paths in sorted(skipped.items())
    )


def _shown(path: str) -> str:
    """Escape the bytes of a file name that are not UTF-8: JSON, a terminal or Prefect would not take them."""
    return path.encode(errors="backslashreplace").decode()


def candidates(
    uri: URI, skipped: Skipped, *, option: str, listed: list[Entry] | None = None, layout: str = LAYOUT
) -> tuple[list[Entry], list[Entry]]:
    """Find Parquet files and images in `listed`, or below `uri`; raise `ValueError` unless there is just one kind."""
    unnamed: list[str] = []
    closed: list[str] = []
    parquet, images = [], []
    for entry in files.walk(uri, unnamed=unnamed, closed=closed) if listed is None else listed:
        name = entry.path.lower()
        if reason := _never_data(entry.path):
            skipped[reason].append(entry.path)
        elif name.endswith(file_kinds.PARQUET):
            parquet.append(entry)
        elif name.endswith(file_kinds.IMAGES):
            images.append(entry)
        elif not uri.is_s3 and os.path.isdir(uri.child(entry.path)):
            skipped["links to folders, which are not followed"].append(entry.path)
        else:
            skipped[file_kinds.why_not_read(name)].append(entry.path)
    for path in closed:
        if not (reason := _never_data(path)):
            raise ValueError(
                f"{option}: {uri.child(_shown(path))} cannot be read: Permission denied; make it readable, or move "
                f"it out of {uri}"
            )
        skipped[reason].append(path)
    if unnamed:
        skipped["part of the key is empty, '.' or '..'; rename them"] += unnamed
    if bool(parquet) == bool(images):
        found = "both images and Parquet" if parquet else "neither images nor Parquet files"
        others = "".join(f"; {one}" for one in left_out(skipped))
        raise ValueError(f"{option}: there are {found} in {uri}; {layout}{others}")
    return parquet, images


def _never_data(path: str) -> str:
    """Return why `path` is skipped whatever is there, and whether it may be looked into or not; empty if it is not."""
    if "/." in f"/{path}":
        return "hidden: the name begins with a dot"
    if f"{path}/".startswith("lost+found/"):
        return "in lost+found, where the file system puts what it recovers"
    return ""


def _split_of(path: str, *, is_parquet: bool) -> str | None:
    """Read the split, if any, from the first folder, or for Parquet from any folder or the file's prefix."""
    *folders, name = PurePosixPath(path).parts
    names = [*folders, re.split(r"[-_.]", name)[0]] if is_parquet else folders[:1]
    return next((name.lower() for name in names if name.lower() in (*_SPLITS, *_STANDS_IN)), None)


def _splits(uri: URI, found: set[str | None], *, option: str) -> tuple[dict[str | None, str], list[str]]:
    """Map each found split to `train` or `test`, with notes for the user; raise `ValueError` if one is missing."""
    splits: dict[str | None, str] = {name: _SPLITS[name] for name in found if name in _SPLITS}
    spare = [name for name in _STANDS_IN if name in found]
    notes = []
    if spare and "test" not in splits.values():
        splits[spare[0]] = "test"
        notes.append(f"there is no split test; {spare[0]} is used instead")
    if missing := sorted({"train", "test"} - set(splits.values())):
        raise ValueError(f"{option}: there is no split {' and no split '.join(missing)} below {uri}; {LAYOUT}")
    return splits, notes


def _classes(
    uri: URI, class_of: Mapping[str, str], split_of: Mapping[str, str], *, is_split: bool, option: str
) -> tuple[str, ...]:
    splits = ("train", "test") if is_split else ("",)
    of = {split: {name for path, name in class_of.items() if split_of[path] == split} for split in splits}
    for split, names in of.items():
        if not names:
            where = f"in split {split} of" if split else "in"
            raise ValueError(f"{option}: there are no class folders with images {where} {uri}; {LAYOUT}")
    learned = of[splits[0]]
    if unlearned := sorted(set().union(*of.values()) - learned):
        raise ValueError(
            f"{option}: class {', '.join(unlearned)} has test images but no training images in {uri}; add training "
            "images, or remove its test images"
        )
    if len(learned) < 2:
        place = uri.child("train") if is_split else uri
        raise ValueError(
            f"{option}: there must be at least two classes below {place}, got {', '.join(learned)}; add a folder with "
            "images of another class"
        )
    return tuple(sorted(learned))


def _by_content(classes: tuple[str, ...], listed: list[SourceEntry], fraction: float) -> Iterator[str]:
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


def _missing(classes: tuple[str, ...], listed: Sequence[SourceEntry]) -> Iterator[str]:
    if not classes:  # Parquet: ingest reports missing classes later
        return
    there = {file.label for file in listed if file.split == "test"}
    if lacking := [name for label, name in enumerate(classes) if label not in there]:
        yield f"there are no test images of class {', '.join(lacking)}, so it cannot be evaluated"


def source_entries(
    uri: URI, entries: list[Entry], *, splits: Mapping[str, str], labels: Mapping[str, int], option: str
) -> list[SourceEntry]:
    """Add checksums, splits and labels, by path, to `entries`; raise `ValueError` for a file that cannot be used."""
    found = []
    for entry, digest in zip(entries, _digests(uri, entries, option=option), strict=True):
        path = entry.path
        try:
            uri.child(path).encode()
        except ValueError as error:  # UnicodeEncodeError is one
            message = f"{option}: the file name {path!r} below {uri} is not allowed: {error}; rename it"
            raise ValueError(message) from None
        found.append(SourceEntry(split=splits[path], label=labels.get(path), path=path, size=entry.size, digest=digest))
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
