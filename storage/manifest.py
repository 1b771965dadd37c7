"""Manifests: the list of a dataset's files, written last; until it is there, the dataset does not exist."""

import functools
import hashlib
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from storage import files, streams
from storage.uri import URI, check_allowed, check_name

FORMAT: Final = 1
"""Version of the manifest's own layout."""
NAME = "_manifest.json"
"""File name of a manifest, directly below the URI that it makes readable."""

DIGEST_LENGTH = 12
"""Hexadecimal digits of a file's SHA-256 that stand in its name."""

Kind = Literal["files", "raw", "prepared", "checkpoint", "predictions", "evaluation", "report"]


class Damaged(RuntimeError):
    """Committed files are not what their manifest says."""

    permanent = True


class File(BaseModel):
    """One file of a committed dataset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$")
    """Relative to the URI."""
    split: str | None = None
    """`train`, `validation`, `test`, `quarantine`, or none."""
    size: int
    """Bytes."""
    rows: int | None = None
    """Rows of a table, none for other files."""
    sha256: str

    @field_validator("split")
    @classmethod
    def _is_name(cls, value: str | None) -> str | None:
        return None if value is None else check_name(value, field="split")


class Manifest(BaseModel):
    """What a URI holds and what made it; immutable once committed."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    format: Literal[1] = FORMAT
    kind: Kind
    fingerprint: str
    parents: dict[str, str]
    """URIs of what it was made from, by role."""
    parameters: dict[str, Any]
    """All that decided the bytes beside the parents; what `auto` resolved to stands in `statistics`."""
    producer: dict[str, str | None]
    """Versions of the package and its libraries, git commit."""
    files: tuple[File, ...]
    rows: int
    """Over all files."""
    columns: dict[str, Any] = Field(alias="schema")
    """Columns and their types, and what is known of them, such as class names; empty for files that are no tables."""
    statistics: dict[str, Any]
    """Of its kind: class counts, mean and deviation, metrics, seconds taken."""
    digest: str | None = None
    """SHA-256 of all of the above as `to_json` writes it, without this; none in manifests of earlier versions."""

    @field_validator("parents")
    @classmethod
    def _are_uris(cls, value: dict[str, str]) -> dict[str, str]:
        return {role: str(URI(parent)) for role, parent in value.items()}

    def split(self, name: str | None) -> list[File]:
        """The files of one split in their order; all files when `name` is none."""
        return [file for file in self.files if name is None or file.split == name]

    def to_json(self) -> bytes:
        """Readable, canonical JSON."""
        content = self.model_dump(mode="json", by_alias=True)
        return json.dumps(content, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"

    def signed(self) -> "Manifest":
        """The same with its own digest."""
        unsigned = self.model_copy(update={"digest": None}).to_json()
        return self.model_copy(update={"digest": hashlib.sha256(unsigned).hexdigest()})


def load(uri: URI) -> Manifest:
    """The manifest of a committed URI.

    Raises `FileNotFoundError` when nothing is committed there, `Damaged` when the manifest is not what was committed,
    and `ValueError` when nothing may be read there: whatever names a URI, a person or a manifest, it is opened here.
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


def find(uri: URI) -> Manifest | None:
    """The manifest of `uri` when it is committed and every file is there with its size, none when not committed.

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
    """The manifest of `uri` after reading every byte it lists and comparing the SHA-256 of each file.

    Raises `FileNotFoundError` when it is not committed, `Damaged` naming the first file that differs.
    """
    manifest = load(uri)
    for file in manifest.files:
        _copy(uri, file, None)
    return manifest


def read_file(uri: URI, file: File) -> bytes:
    """The bytes of one listed file, never other bytes than were committed; raises `Damaged`."""
    check_place(uri, file.path)
    try:
        content = files.read(uri.child(file.path))
    except FileNotFoundError:
        raise Damaged(_damage(uri, file, "it is missing")) from None
    _check_content(uri, file, size=len(content), sha256=hashlib.sha256(content).hexdigest())
    return content


def fetch_file(uri: URI, file: File, path: Path) -> None:
    """Bring one listed file to the local `path`, never other bytes than were committed; a file of any size.

    `path` is a copy: whoever reads it may write to it too. Raises `Damaged`.
    """
    with path.open("wb") as copy:
        _copy(uri, file, copy)


def write_file(
    uri: URI, path: str, content: bytes, *, split: str | None = None, rows: int | None = None, fixed_name: bool = False
) -> File:
    """Write a file that a later `commit` may list, under a name that holds its digest; returns its entry.

    `path` such as `train/part-00000.parquet` becomes `train/part-00000-<digest>.parquet`: the same bytes always have
    the same name and other bytes another one, so that no writer, not even one that was frozen and wakes up after a
    commit, can change what somebody else wrote.

    `fixed_name` keeps `path` as it is where nothing else lies there, for files that people open by name: their bytes
    follow from the parents, so that what another attempt left is almost always the same.
    """
    digest = hashlib.sha256(content).hexdigest()
    place = PurePosixPath(path)
    named = str(place.with_name(f"{place.stem}-{digest[:DIGEST_LENGTH]}{place.suffix}"))
    file = File(path=named, split=split, size=len(content), rows=rows, sha256=digest)
    check_place(uri, file.path)
    if fixed_name and _is_there(uri.child(path), content):
        return file.model_copy(update={"path": path})
    files.replace(uri.child(file.path), content)
    return file


def _is_there(uri: URI, content: bytes) -> bool:
    """Whether `uri` holds `content`, once it was created unless something else was there."""
    try:
        files.create(uri, content)
    except FileExistsError:
        return files.read(uri) == content
    return True


def commit(
    uri: URI,
    *,
    kind: Kind,
    parents: Mapping[str, URI],
    parameters: Mapping[str, Any],
    listed: Sequence[File],
    schema: Mapping[str, Any] | None = None,
    statistics: Mapping[str, Any] | None = None,
) -> Manifest:
    """Make `uri` readable, all of it or none of it; the first committer wins, all get the winner's manifest."""
    manifest = Manifest(
        kind=kind,
        fingerprint=uri.fingerprint,
        parents={role: str(parent) for role, parent in parents.items()},
        parameters=dict(parameters),
        producer=producer(),
        files=tuple(listed),
        rows=sum(file.rows or 0 for file in listed),
        schema=dict(schema or {}),
        statistics=dict(statistics or {}),
    )
    content = manifest.signed().to_json()
    check_place(uri, NAME)
    try:
        files.create(uri.child(NAME), content)
    except FileExistsError:
        return load(uri)
    return Manifest.model_validate_json(content)  # as every later reader sees it: JSON has no tuples, no integer keys


def check_place(uri: URI, path: str) -> None:
    """Raise `ValueError` when `uri` is not allowed, `Damaged` when it, or `path` in it, is a link out of its folder."""
    check_allowed(uri)
    for place, folder in ((uri, uri.parent), (uri.child(path), uri)):
        if not place.lies_in(folder):
            raise Damaged(f"{place} is a link that leads out of {folder}: put what it leads to in its place")


@functools.cache
def producer() -> dict[str, str | None]:
    """Versions of this package and of the libraries that decide bytes, and the git commit of the checkout if any."""
    versions: dict[str, str | None] = {}
    for package in ("mnist-pipeline", "ray", "torch", "torchvision", "prefect", "pyarrow"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions | {"git": _git_commit()}


def _git_commit() -> str | None:
    folder = Path(__file__).parent.parent
    if not (folder / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _copy(uri: URI, file: File, copy: BinaryIO | None) -> None:
    """Read one listed file piece by piece, into `copy` if there is one; raises `Damaged`."""
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
    return f"{uri}/{NAME} {what}; restore it from a copy, or remove {uri} and run again to make it anew"


def _damage(uri: URI, file: File, what: str) -> str:
    return f"{uri.child(file.path)} is damaged: {what}; restore it, or remove {uri} and run again to make it anew"
