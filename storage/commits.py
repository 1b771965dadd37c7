"""Commits: files are written under names that hold their digest, and a manifest, written last, makes them a result."""

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from storage import files, manifest, reference
from storage.kinds import KINDS
from storage.manifest import File, Manifest, Parent
from storage.producer import producer
from storage.statistics import Statistics
from storage.uri import URI


def write_file(
    uri: URI, path: str, content: bytes, *, split: str | None = None, rows: int | None = None, fixed_name: bool = False
) -> File:
    """Write a file that a later `commit` may list, under a name that contains its digest; return its entry.

    `path` is relative to the result's `uri`: `train/part-00000.parquet` becomes `train/part-00000-<digest>.parquet`, so
    no writer, not even a late one, can change another writer's file. With `fixed_name`, for files that users open by
    name, `path` is kept and what an older attempt left there is replaced, unless the result is committed.
    """
    digest = hashlib.sha256(content).hexdigest()
    place = PurePosixPath(path)
    named = str(place.with_name(f"{place.stem}-{digest[: manifest.DIGEST_LENGTH]}{place.suffix}"))
    if fixed_name and not manifest.is_committed(uri):
        named = path
    files.put(uri.child(named), content)
    return File(path=named, split=split, size=len(content), rows=rows, sha256=digest)


def commit(
    uri: URI,
    *,
    kind: str,
    parents: Mapping[str, URI | Parent],
    parameters: Mapping[str, object],
    listed: Sequence[File],
    schema: Mapping[str, object] | None = None,
    statistics: Statistics,
) -> Manifest:
    """Commit a result in one step; the first committer wins, and every committer gets the winner's manifest.

    Pass as `parents` what `as_parent` returned for the manifests that were read; a URI is read now.
    """
    assert type(statistics) is KINDS[kind].statistics, f"{kind} has no {type(statistics).__name__}"
    assert parents.keys() <= {*KINDS[kind].parents}, f"{kind} has no parents {', '.join(parents)}"
    recorded = {role: _parent(parent, of=uri) for role, parent in parents.items()}
    result = Manifest(
        kind=kind,
        fingerprint=uri.fingerprint,
        parents=recorded,
        parameters=dict(parameters),
        producer=producer(),
        files=tuple(listed),
        rows=sum(file.rows or 0 for file in listed),
        schema=dict(schema or {}),
        statistics=statistics,
        created=datetime.datetime.now(datetime.UTC),
    )
    content = result.signed().to_json()
    try:
        files.put(uri.child(manifest.NAME), content, mode="create")
    except FileExistsError:
        return manifest.load(uri)
    return Manifest.model_validate_json(content)  # as every later reader sees it: JSON has no tuples, no integer keys


def _parent(parent: URI | Parent, *, of: URI) -> Parent:
    if isinstance(parent, URI):
        parent = manifest.load(parent).as_parent(parent)
    return parent.model_copy(update={"uri": reference.of(URI(parent.uri), root=reference.root_of(of))})
