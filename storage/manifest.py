"""Manifests: a manifest lists a dataset's files and is written last; without it, the dataset does not exist."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, Field, SerializeAsAny, ValidationError, ValidationInfo, field_validator

from storage import files, reference
from storage.error_policy import Permanent
from storage.kinds import KINDS, Kind, S, U
from storage.producer import producer
from storage.statistics import Statistics
from storage.uri import URI, Root

JSON = dict[str, Any]
"""A JSON object, of which a reader knows the fields that it reads."""
NAME = "_manifest.json"
"""File name of a manifest, directly below the URI that it commits."""
DIGEST_LENGTH = 12
"""Number of hexadecimal digits of a file's SHA-256 in its name."""


class Damaged(Permanent, RuntimeError):
    """Committed files differ from what was committed, or are missing."""


class File(BaseModel, frozen=True, extra="forbid"):
    """One file of a committed dataset."""

    path: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$")
    """Path relative to the URI."""
    split: str | None = None
    """`train`, `validation`, `test`, `quarantine`, or none."""
    size: int
    """Size in bytes."""
    rows: int | None = None
    """Number of rows of a table; none for other files."""
    sha256: str


class Parent(BaseModel, frozen=True, extra="forbid"):
    """Parent that a result was made from, with digests of the bytes that it had then."""

    uri: str
    """Reference of the parent: relative to the storage root, or a URI if it lies below another root."""
    digest: str
    """Digest of its manifest."""
    content: str
    """`Manifest.content` of its manifest."""

    @field_validator("uri")
    @classmethod
    def _is_reference(cls, value: str) -> str:
        reference.resolve(value, root=Root("/"))
        return value


class Manifest(BaseModel, frozen=True, extra="forbid", populate_by_name=True):
    """Content and origin of a committed URI; immutable."""

    format: Literal[1] = 1
    """Version of the layout."""
    kind: str
    fingerprint: str
    parents: dict[str, Parent]
    """Parents by role; the method `parent` returns a parent's URI."""
    parameters: JSON
    """Everything besides the parents that decided the bytes; what `auto` resolved to is in `statistics`."""
    producer: dict[str, str | None]
    """Versions of the package and its libraries, git commit."""
    files: tuple[File, ...]
    rows: int
    """Number of rows over all files."""
    columns: JSON = Field(alias="schema")
    """Columns with their types and metadata, such as class names; empty if the files are not tables."""
    statistics: SerializeAsAny[Statistics]
    """Of the class that the kind names; `statistics_of` returns it as such."""
    created: AwareDatetime
    """Time of the commit; not part of `content` or of any fingerprint."""
    digest: str = ""
    """SHA-256 of all fields above, as `to_json` writes them with an empty digest."""

    @field_validator("kind")
    @classmethod
    def _is_kind(cls, value: str) -> str:
        if value not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {value!r}")
        return value

    @field_validator("statistics", mode="plain")
    @classmethod
    def _are_of_kind(cls, value: object, info: ValidationInfo) -> Statistics:
        kind = KINDS.get(info.data.get("kind", ""))
        return (kind.statistics if kind else Statistics).model_validate(value)

    @property
    def content(self) -> str:
        """SHA-256 of the files' names and digests and of the schema; the same if a result is made again bit for bit."""
        contents = [(file.path, file.split, file.rows, file.sha256) for file in self.files]
        return hashlib.sha256(json.dumps([contents, self.columns], sort_keys=True).encode()).hexdigest()

    def statistics_of(self, kind: Kind[U, S]) -> S:
        assert isinstance(self.statistics, kind.statistics), f"it is of kind {self.kind}, not {kind.name}"
        return self.statistics

    def parent(self, role: str, *, of: URI) -> URI:
        """Return the URI of the parent with `role`; `of` is the URI of this manifest. Raises `KeyError`."""
        return reference.resolve(self.parents[role].uri, root=reference.root_of(of))

    def as_parent(self, uri: URI) -> Parent:
        """Return the `Parent` that a child of this manifest, read from `uri`, must record."""
        return Parent(uri=uri, digest=self.digest, content=self.content)

    def split(self, name: str | None) -> list[File]:
        """Return the files of one split in their order; all files if `name` is none."""
        return [file for file in self.files if name is None or file.split == name]

    def files_of(self, start: str) -> list[File]:
        return [file for file in self.files if file.path.startswith(start)]

    def file(self, name: str) -> File | None:
        """Return the file that was written as `name` with any ending, such as `digests`; none if there is none."""
        return next((file for file in self.files if file.path.partition(".")[0].partition("-")[0] == name), None)

    def num_rows(self, *splits: str) -> int:
        return sum(file.rows or 0 for file in self.files if file.split in splits)

    def to_json(self) -> bytes:
        """Format as readable, canonical JSON."""
        content = self.model_dump(mode="json", by_alias=True)
        return json.dumps(content, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"

    def signed(self) -> "Manifest":
        unsigned = self.model_copy(update={"digest": ""}).to_json()
        return self.model_copy(update={"digest": hashlib.sha256(unsigned).hexdigest()})


def load(uri: URI) -> Manifest:
    """Read and check the manifest of a committed URI; every URI, typed or read from a manifest, is opened here.

    Raises `FileNotFoundError` if nothing is committed at `uri`, `Damaged` if its manifest was changed.
    """
    try:
        content = files.read(uri.child(NAME))
    except FileNotFoundError:
        raise FileNotFoundError(f"{uri} is not committed: it has no {NAME}") from None
    advice = f"restore it from a copy, or delete {uri} and run again to recreate it"
    try:
        committed = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise unread(uri.child(NAME), content, error, advice=advice) from None
    if committed != committed.signed():
        raise Damaged(f"{uri}/{NAME} is not what was committed (SHA-256); {advice}")
    return committed


def unread(uri: URI, content: bytes, error: ValidationError, *, advice: str) -> Damaged:
    """Return the error for a JSON file that pydantic refuses; `advice` is for one that no newer version wrote."""
    problems = error.errors(include_url=False)
    place = [str(part) for part in problems[0]["loc"] if "[" not in str(part)]  # pydantic names its own functions too
    problem = f"{'.'.join(place) or 'JSON'}: {problems[0]['msg'].removeprefix('Value error, ')}"
    is_unknown = [each["type"] == "extra_forbidden" or each["loc"] == ("kind",) for each in problems]
    if not all(is_unknown) and ("format",) not in [each["loc"] for each in problems]:
        return Damaged(f"{uri} cannot be read ({problem}); {advice}")
    both = (json.loads(content).get("producer") or {}, producer())
    written, own = (" ".join(str(each[name]) for name in ("data-to-model", "git") if each.get(name)) for each in both)
    writer = f"version {written}, newer" if written else "a newer version"
    return Damaged(f"{uri} was written by {writer} than this one, {own} ({problem}): update data-to-model")


def is_committed(uri: URI) -> bool:
    return files.exists(uri.child(NAME))


def find(uri: URI) -> Manifest | None:
    """Return `verify` of `uri` by sizes alone, in one listing; none if it is not committed."""
    try:
        return verify(uri, deep=False)
    except FileNotFoundError:
        return None


def verify(uri: URI, *, deep: bool = True) -> Manifest:
    """Read the manifest of `uri`, and compare the size and, with `deep`, the SHA-256 of every file it lists.

    Raises `FileNotFoundError` if `uri` is not committed, `Damaged` naming the first file that differs.
    """
    manifest = load(uri)
    for problem in damages(uri, manifest, files.walk(uri), deep=deep):
        raise Damaged(problem)
    return manifest


def damages(uri: URI, manifest: Manifest, entries: Iterable[files.Entry], *, deep: bool = False) -> Iterator[str]:
    """Yield a sentence for every file of `manifest` that is not among `entries` with its size, the listing of `uri`.

    With `deep`, also for every file with another SHA-256, and for every file that cannot be read.
    """
    sizes = {entry.path: entry.size for entry in entries}
    for file in manifest.files:
        problem = _difference(file, size=sizes.get(file.path))
        if deep and not problem:
            try:
                problem = _difference(file, size=file.size, sha256=files.sha256(uri.child(file.path)))
            except ConnectionError:
                raise
            except OSError as error:
                problem = f"it cannot be read ({error.strerror or error})"
        if problem:
            yield damage(uri, file, problem)


def read_file(uri: URI, file: File) -> bytes:
    """Read one listed file; raises `Damaged` if its bytes are not those that were committed."""
    try:
        content = files.read(uri.child(file.path))
    except FileNotFoundError:
        raise Damaged(damage(uri, file, "it is missing")) from None
    _check(uri, file, size=len(content), sha256=hashlib.sha256(content).hexdigest())
    return content


def fetch_file(uri: URI, file: File, path: Path) -> None:
    """Copy one listed file of any size to the local `path`; raises `Damaged` as `read_file` does."""
    try:
        with path.open("wb") as copy:
            copy.writelines(files.pieces(uri.child(file.path)))
    except FileNotFoundError:
        raise Damaged(damage(uri, file, "it is missing")) from None
    _check(uri, file, size=path.stat().st_size, sha256=files.sha256(URI(str(path))))


def _check(uri: URI, file: File, *, size: int, sha256: str) -> None:
    if problem := _difference(file, size=size, sha256=sha256):
        raise Damaged(damage(uri, file, problem))


def _difference(file: File, *, size: int | None, sha256: str | None = None) -> str | None:
    """Say how a file of `size` bytes (none: it is missing) differs from the committed one; none if it does not."""
    if size != file.size:
        return "it is missing" if size is None else f"it has {size} bytes instead of {file.size}"
    not_same = "its content is not what was committed (SHA-256)"
    return not_same if sha256 not in (None, file.sha256) else None


def damage(uri: URI, file: File, what: str) -> str:
    """Describe a damaged file of the result `uri`, with the next step."""
    return f"{uri.child(file.path)} is damaged: {what}; restore it, or delete {uri} and run again to recreate it"
