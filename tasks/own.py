"""A person's own data: which files below a URI are images or Parquet, in which splits and classes."""

import dataclasses
import functools
import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Literal

from storage import files
from storage.files import Entry
from storage.uri import URI
from tasks.jobs.spec import SourceEntry
from tasks.learning import datasets

VERSION = 2
"""Raised by one when a change makes other pixels of the same files."""
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_PARQUET = ".parquet"
_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_STANDS_IN = ("validation", "valid", "val", "dev")
"""Splits of which the first that is there is taken as `test` where there is none."""
_LAYOUT = "expected train/<class>/*.png (jpg, ...) and test/<class>/..., or train-*.parquet and test-*.parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own:
    """What was found below a URI; the same files give the same `digest`."""

    uri: URI
    """Where it lies."""
    kind: Literal["images", "parquet"]
    """One image a file, or Parquet files with many."""
    classes: tuple[str, ...]
    """Names of the folders, sorted; none for Parquet, whose labels are read later."""
    files: tuple[SourceEntry, ...]
    """Sorted by split and path."""
    notes: tuple[str, ...] = ()
    """What a person should know of it, a line each."""

    @property
    def name(self) -> str:
        """What folders and the championship are called: the name of the folder, in letters that a path may have."""
        plain = unicodedata.normalize("NFKD", self.uri.name).encode("ascii", "ignore").decode().lower()
        name = re.sub("[^a-z0-9]+", "-", plain).strip("-")[:64].strip("-") or "images"
        return f"own-{name}"[:64] if name in datasets.known() else name

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the sorted list of path, size and checksum (or ETag) of every file."""
        listed = sorted((file.path, file.size, file.digest) for file in self.files)
        return hashlib.sha256(json.dumps(listed, separators=(",", ":")).encode()).hexdigest()


def find(uri: URI, *, option: str = "--data") -> Own:
    """The images or Parquet files below `uri`, with their checksums.

    Raises `ValueError` naming `option` where there are none, no splits, or not two classes to tell apart.
    """
    entries = [entry for entry in files.walk(uri) if "/." not in f"/{entry.path}"]  # not what is hidden
    parquet = [entry for entry in entries if entry.path.lower().endswith(_PARQUET)]
    images = [entry for entry in entries if entry.path.lower().endswith(IMAGES)]
    if bool(parquet) == bool(images):
        found = "both images and Parquet" if parquet else "neither images nor Parquet"
        raise ValueError(f"{option}: there are {found} below {uri}; {_LAYOUT}")
    notes = [f"{len(entries) - len(parquet) - len(images)} other files below {uri} are left out"]
    others = {entry.path for entry in entries} - {entry.path for entry in [*parquet, *images]}
    links = [path for path in sorted(others) if not uri.is_s3 and os.path.isdir(uri.child(path))]
    placed = {entry.path: _split_of(entry.path, is_parquet=bool(parquet)) for entry in [*parquet, *images]}
    splits, more = _splits(uri, set(filter(None, placed.values())), option=option)
    notes = (notes if len(entries) > len(placed) else []) + more
    notes += [f"the folder {path} is a link, which is not followed: it is left out" for path in links]
    kept = [entry for entry in [*parquet, *images] if placed[entry.path] in splits]
    if images and (loose := [entry.path for entry in kept if entry.path.count("/") < 2]):
        notes.append(f"{len(loose)} images lie in no class folder and are left out, such as {loose[0]}")
        kept = [entry for entry in kept if entry.path.count("/") >= 2]
    split_of = {entry.path: splits[str(placed[entry.path])] for entry in kept}
    classes = _classes(uri, kept, split_of, option=option) if images else ()
    number = {name: label for label, name in enumerate(classes)}
    listed = [
        SourceEntry(
            split=split_of[entry.path],
            label=number[_class_of(entry.path)] if images else None,
            path=_checked_name(uri, entry.path, option=option),
            size=entry.size,
            digest=digest,
        )
        for entry, digest in zip(kept, _digests(uri, kept), strict=True)
    ]
    if classes:
        notes += _missing(classes, listed)
    return Own(
        uri=uri,
        kind="images" if images else "parquet",
        classes=classes,
        files=tuple(sorted(listed, key=lambda file: (file.split, file.path))),
        notes=tuple(notes),
    )


def _split_of(path: str, *, is_parquet: bool) -> str | None:
    """The name of the split that `path` says: the first folder, or of Parquet any folder or what the file begins with.

    None when it says none.
    """
    known = {*_SPLITS, *_STANDS_IN}
    folders = PurePosixPath(path).parts[:-1]
    names = [folders[0]] if folders and not is_parquet else list(folders)
    if is_parquet:
        names.append(re.split(r"[-_.]", PurePosixPath(path).name)[0])
    return next((name.lower() for name in names if name.lower() in known), None)


def _splits(uri: URI, found: set[str], *, option: str) -> tuple[dict[str, str], list[str]]:
    """Which split of ours each found one becomes, and what is to be said of it."""
    splits = {name: _SPLITS[name] for name in found if name in _SPLITS}
    spare = [name for name in _STANDS_IN if name in found]
    notes = []
    if spare and "test" not in splits.values():
        splits[spare[0]] = "test"
        notes.append(f"there is no split test: {spare.pop(0)} is taken as such")
    if spare:
        notes.append(f"split {', '.join(spare)} is left out: validation rows are taken from train")
    if missing := sorted({"train", "test"} - set(splits.values())):
        raise ValueError(f"{option}: there is no split {' and no split '.join(missing)} below {uri}; {_LAYOUT}")
    return splits, notes


def _class_of(path: str) -> str:
    # macOS takes accents apart in file names, others do not: the same name is the same class.
    return unicodedata.normalize("NFC", path.split("/")[1])


def _classes(uri: URI, kept: Iterable[Entry], split_of: dict[str, str], *, option: str) -> tuple[str, ...]:
    of = {split: {_class_of(path) for path, its in split_of.items() if its == split} for split in ("train", "test")}
    for split, names in of.items():
        if not names:
            raise ValueError(f"{option}: there are no images in classes in split {split} of {uri}; {_LAYOUT}")
    if unlearned := sorted(of["test"] - of["train"]):
        raise ValueError(f"{option}: no image in train of {uri} is of class {', '.join(unlearned)}, which test has")
    if len(of["train"]) < 2:
        raise ValueError(f"{option}: there must be two classes or more below {uri}/train, got {', '.join(of['train'])}")
    return tuple(sorted(of["train"]))


def _missing(classes: tuple[str, ...], listed: list[SourceEntry]) -> Iterator[str]:
    there = {file.label for file in listed if file.split == "test"}
    if lacking := [name for label, name in enumerate(classes) if label not in there]:
        yield f"no test image is of class {', '.join(lacking)}: nothing will be known of it"


def _checked_name(uri: URI, path: str, *, option: str) -> str:
    try:
        uri.child(path).encode()
    except ValueError as error:  # UnicodeEncodeError is one
        raise ValueError(f"{option}: the file {path!r} below {uri} cannot be named: {error}; rename it") from None
    return path


def _digests(uri: URI, entries: list[Entry]) -> Iterable[str]:
    """The ETag of each entry on S3, on a disk its SHA-256, which takes as long as reading it; once in a process."""
    if uri.is_s3:
        return [f"etag:{entry.etag}" for entry in entries]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda entry: _sha256(uri.child(entry.path), entry.size, entry.modified), entries))


@functools.lru_cache(maxsize=2**20)
def _sha256(path: str, size: int, modified: float) -> str:
    if not os.path.isfile(path):  # a link to nowhere, or what would be waited for
        raise ValueError(f"--data: {path} is no file; remove it")
    try:
        with open(path, "rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise ValueError(f"--data: {path} cannot be read: {error.strerror}; make it readable, or remove it") from None
