"""Manifests: a manifest lists a dataset's files and is written last; without it, the dataset does not exist."""

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

from storage import files, reference, streams
from storage.error_policy import Permanent
from storage.uri import URI, Root, check_allowed, check_name

FORMAT: Final = 2
"""Version of the manifest's layout; version 1 had URIs in place of `Parent` objects."""
NAME = reference.MANIFEST
"""File name of a manifest, directly below the URI that it commits."""

DIGEST_LENGTH = 12
"""Number of hexadecimal digits of a file's SHA-256 in its name."""

Kind = Literal["files", "raw", "prepared", "checkpoint", "predictions", "evaluation", "report"]


class Damaged(Permanent, RuntimeError):
    """Committed files differ from what was committed, or are missing."""


class File(BaseModel):
    """One file of a committed dataset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$")
    """Path relative to the URI."""
    split: str | None = None
    """`train`, `validation`, `test`, `quarantine`, or none."""
    size: int
    """Size in bytes."""
    rows: int | None = None
    """Number of rows of a table; none for other files."""
    sha256: str

    @field_validator("split")
    @classmethod
    def _is_name(cls, value: str | None) -> str | None:
        return None if value is None else check_name(value, field="split")


class Parent(BaseModel):
    """Parent that a result was made from, with digests of the bytes that it had then."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str
    """Reference of the parent: relative to the storage root, or a URI if it lies below another root."""
    digest: str | None
    """Digest of its manifest; none if an earlier version of this package committed it."""
    content: str
    """`Manifest.content` of its manifest."""


class Manifest(BaseModel):
    """Content and origin of a committed URI; immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    format: Literal[1, 2] = FORMAT
    kind: Kind
    fingerprint: str
    parents: dict[str, str | Parent]
    """Parents by role; plain URIs in manifests of earlier versions. The method `parent` returns a parent's URI."""
    parameters: dict[str, Any]
    """Everything besides the parents that decided the bytes; what `auto` resolved to is in `statistics`."""
    producer: dict[str, str | None]
    """Versions of the package and its libraries, git commit."""
    files: tuple[File, ...]
    rows: int
    """Number of rows over all files."""
    columns: dict[str, Any] = Field(alias="schema")
    """Columns with their types and metadata, such as class names; empty if the files are not tables."""
    statistics: dict[str, Any]
    """Statistics that depend on the kind: class counts, mean and standard deviation, metrics, seconds taken."""
    created: AwareDatetime | None = None
    """Time of the commit; none in manifests of earlier versions. Not part of `content` or of any fingerprint."""
    digest: str | None = None
    """SHA-256 of all fields above, as `to_json` writes them without this one; none in earlier versions' manifests."""

    @field_validator("parents")
    @classmethod
    def _are_references(cls, value: dict[str, str | Parent]) -> dict[str, str | Parent]:
        for parent in value.values():
            reference.resolve(parent if isinstance(parent, str) else parent.uri, root=Root("/"))
        return {role: str(URI(parent)) if isinstance(parent, str) else parent for role, parent in value.items()}

    @property
    def content(self) -> str:
        """SHA-256 of the files' names and digests and of the schema; the same if a result is made again bit for bit."""
        listed = [(file.path, file.split, file.rows, file.sha256) for file in self.files]
        return hashlib.sha256(json.dumps([listed, self.columns], sort_keys=True).encode()).hexdigest()

    def parent(self, role: str, *, of: URI) -> URI:
        """Return the URI of the parent with `role`; `of` is the URI of this manifest. Raises `KeyError`."""
        named = self.parents[role]
        if isinstance(named, str):
            return reference.resolve(named, root=reference.root_of(of), is_moved=True)
        return reference.resolve(named.uri, root=reference.root_of(of))

    def as_parent(self, uri: URI) -> Parent:
        """Return the `Parent` that a child of this manifest, read from `uri`, must record."""
        return Parent(uri=str(uri), digest=self.digest, content=self.content)

    def split(self, name: str | None) -> list[File]:
        """Return the files of one split in their order; all files if `name` is none."""
        return [file for file in self.files if name is None or file.split == name]

    def to_json(self) -> bytes:
        """Format as readable, canonical JSON."""
        content = self.model_dump(mode="json", by_alias=True)
        if self.created is None:  # the digest of an old manifest does not cover this field
            del content["created"]
        return json.dumps(content, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"

    def signed(self) -> "Manifest":
        """Return a copy with its own digest."""
        unsigned = self.model_copy(update={"digest": None}).to_json()
        return self.model_copy(update={"digest": hashlib.sha256(unsigned).hexdigest()})


def load(uri: URI) -> Manifest:
    """Read and check the manifest of a committed URI; every URI, typed or read from a manifest, is opened here.

    Raises:
        FileNotFoundError: Nothing is committed at `uri`.
        Damaged: The manifest differs from what was committed.
        ValueError: `uri` is not allowed.
    """
    check_place(uri, NAME)
    try:
        content = files.read(uri.child(NAME))
    except FileNotFoundError:
        raise FileNotFoundError(f"{uri} is not committed: it has no {NAME}") from None
    try:
        found = Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "JSON"
        raise Damaged(_damaged_manifest(uri, f"cannot be read ({place}: {first['msg']})")) from None
    if found.digest is not None and found != found.signed():
        raise Damaged(_damaged_manifest(uri, "is not what was committed (SHA-256)"))
    return found


def changed_parent(uri: URI, made: Manifest) -> URI | None:
    """Return a parent whose bytes changed since `made`, committed at `uri`, was made from it.

    Return none if every parent is unchanged, missing or was recorded without a digest.
    """
    for role, named in made.parents.items():
        if isinstance(named, str):
            continue
        try:
            now = load(made.parent(role, of=uri))
        except (FileNotFoundError, Damaged, ValueError):
            continue
        if now.digest != named.digest and now.content != named.content:
            return made.parent(role, of=uri)
    return None


def find(uri: URI) -> Manifest | None:
    """Read the manifest of `uri` and check that every file exists with its size; return none if not committed.

    Raises `Damaged` naming the first file that is missing or has another size.
    """
    try:
        manifest = load(uri)
    except FileNotFoundError:
        return None
    for file in manifest.files:
        _check_size(uri, file)
    return manifest


def verify(uri: URI) -> Manifest:
    """Read the manifest of `uri` and every byte it lists, and compare the SHA-256 of each file.

    Raises:
        FileNotFoundError: `uri` is not committed.
        Damaged: A file differs; the message names the first one.
    """
    manifest = load(uri)
    for file in manifest.files:
        _copy(uri, file, None)
    return manifest


def read_file(uri: URI, file: File) -> bytes:
    """Read one listed file; raises `Damaged` if its bytes are not those that were committed."""
    check_place(uri, file.path)
    try:
        content = files.read(uri.child(file.path))
    except FileNotFoundError:
        raise Damaged(_damage(uri, file, "it is missing")) from None
    _check_content(uri, file, size=len(content), sha256=hashlib.sha256(content).hexdigest())
    return content


def fetch_file(uri: URI, file: File, path: Path) -> None:
    """Copy one listed file of any size to the local `path`, where it may be modified.

    Raises `Damaged` if its bytes are not those that were committed.
    """
    with path.open("wb") as copy:
        _copy(uri, file, copy)


def check_place(uri: URI, path: str) -> None:
    """Raise `ValueError` if `uri` is not allowed, `Damaged` if it, or `path` in it, is a link out of its folder."""
    check_allowed(uri)
    for place, folder in ((uri, uri.parent), (uri.child(path), uri)):
        if not place.lies_in(folder):
            raise Damaged(f"{place} is a link that leads out of {folder}: replace the link with the file")


def _copy(uri: URI, file: File, copy: BinaryIO | None) -> None:
    check_place(uri, file.path)
    digest, size = hashlib.sha256(), 0
    try:
        for piece in streams.pieces(uri.child(file.path)):
            digest.update(piece)
            size += len(piece)
            if copy:
                copy.write(piece)
    except FileNotFoundError:
        raise Damaged(_damage(uri, file, "it is missing")) from None
    _check_content(uri, file, size=size, sha256=digest.hexdigest())


def _check_content(uri: URI, file: File, *, size: int, sha256: str) -> None:
    if size != file.size:
        raise Damaged(_damage(uri, file, f"it has {size} bytes instead of {file.size}"))
    if sha256 != file.sha256:
        raise Damaged(_damage(uri, file, "its content is not what was committed (SHA-256)"))


def _check_size(uri: URI, file: File) -> None:
    check_place(uri, file.path)
    try:
        found = files.size(uri.child(file.path))
    except FileNotFoundError:
        raise Damaged(_damage(uri, file, "it is missing")) from None
    if found != file.size:
        raise Damaged(_damage(uri, file, f"it has {found} bytes instead of {file.size}"))


def _damaged_manifest(uri: URI, what: str) -> str:
    return f"{uri}/{NAME} {what}; restore it from a copy, or delete {uri} and run again to recreate it"


def _damage(uri: URI, file: File, what: str) -> str:
    return f"{uri.child(file.path)} is damaged: {what}; restore it, or delete {uri} and run again to recreate it"
