"""What images that are a file each and Parquet have in common: a person's own files, listed before the job began."""

import errno
import hashlib
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage import files, manifest, streams
from storage.manifest import File
from storage.uri import URI, check_allowed
from tasks.jobs.ingest import pieces
from tasks.jobs.ingest.pieces import Piece
from tasks.jobs.spec import SOURCES, IngestSpec, SourceEntry
from tasks.learning import images
from tasks.learning.decode import Decoded

_SHOWN = 20
"""How many unreadable files the manifest's statistics name; the table of sources names all."""
_SOURCES = pa.schema(
    {
        "split": pa.string(),
        "first_id": pa.int64(),
        "rows": pa.int64(),
        "path": pa.string(),
        "size": pa.int64(),
        "sha256": pa.string(),
        "problem": pa.string(),
    }
)
"""Row `id` of a split came from the last file of that split whose first_id is not above it."""


def listed(spec: IngestSpec) -> list[SourceEntry]:
    """Load the list of the files, sorted by split and path."""
    return [SourceEntry(**entry) for entry in json.loads(files.read(spec.listing))]


def size_of(spec: IngestSpec) -> tuple[int, int]:
    """Pixels a side, and channels."""
    return spec.parameters["image_size"], spec.parameters["channels"]


def shape_of(spec: IngestSpec) -> tuple[int, int, int]:
    """Height, width and channels."""
    size, channels = size_of(spec)
    return size, size, channels


def read(spec: IngestSpec, file: SourceEntry) -> tuple[bytes, str]:
    """Read a listed file, and its SHA-256; raises `ValueError` when its bytes are not those that were listed."""
    uri = spec.source.child(file.path)
    check_allowed(uri)
    kind, _, value = file.digest.partition(":")
    content = files.read_version(uri, value) if kind == "etag" else files.read(uri)
    digest = "" if content is None else hashlib.sha256(content).hexdigest()
    if content is None or len(content) != file.size or (kind == "sha256" and value != digest):
        raise ValueError(f"{uri} changed after it was listed; give the same command again")
    return content, digest


def bring(spec: IngestSpec, file: SourceEntry, path: Path) -> str:
    """Copy a listed file of any size to the local `path`, and return its SHA-256.

    Raises:
        ValueError: Its bytes are not those that were listed.
    """
    uri = spec.source.child(file.path)
    check_allowed(uri)
    kind, _, value = file.digest.partition(":")
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("wb") as copy:
            for content in streams.pieces(uri, etag=value if kind == "etag" else None):
                copy.write(content)
                digest.update(content)
                size += len(content)
    except OSError as error:
        if error.errno != errno.EIO:  # which says that it is another version
            raise
        size = -1
    if size != file.size or (kind == "sha256" and value != digest.hexdigest()):
        raise ValueError(f"{uri} changed after it was listed; give the same command again")
    return digest.hexdigest()


def to_table(
    first: int,
    decoded: Sequence[Decoded | None],
    labels: Sequence[int | None],
    spec: IngestSpec,
    classes: Sequence[str],
) -> pa.Table:
    """Make a table of images, numbered from `first`; one that could not be read has no pixels."""
    columns = images.schema(shape_of(spec), classes)
    arrays = [
        pa.array(range(first, first + len(decoded)), pa.int64()),
        pa.array([one and one.pixels for one in decoded], columns.field("image").type),
        pa.array(labels, pa.int64()),
    ]
    return pa.table(arrays, schema=columns)


def written(
    split: str,
    parts: Sequence[File],
    decoded: Sequence[Decoded | None],
    labels: Sequence[int | None],
    sources: Sequence[dict[str, Any]],
) -> Piece:
    """Say what came of a piece, and of the images in it as they came."""
    there = [one for one in decoded if one is not None]
    return pieces.written(
        parts,
        {split: Counter(label for label in labels if label is not None)},
        widths=_range([one.width for one in there]),
        heights=_range([one.height for one in there]),
        modes=dict(Counter(one.mode for one in there)),
        sources=list(sources),
    )


def finish(spec: IngestSpec, done: Sequence[Piece]) -> tuple[list[File], dict[str, Any]]:
    """Write the table of all files, and say what was found; raises `ValueError` when no image can be read."""
    found = _found(done)
    sources = [source for one in done for source in one["sources"]]
    broken = [source["path"] for source in sources if source["problem"]]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(sources, schema=_SOURCES), sink, compression="zstd")
    table = manifest.write_file(spec.target, f"{SOURCES}.parquet", sink.getvalue())
    name = f"{len(sources):,} files, listed in {table.path}"
    about = {
        "sources": [{"name": name, "sha256": spec.digest, "url": spec.source}],
        "found": found,
        "unreadable": {"count": len(broken), "files": broken[:_SHOWN]},
        "notice": None,
    }
    return [table], about


def parents(spec: IngestSpec) -> dict[str, URI]:
    """None: a person's own files are no result of ours."""
    return {}


def _range(sides: list[int]) -> list[int]:
    """The smallest and the largest, nothing of nothing."""
    return [min(sides), max(sides)] if sides else []


def _found(done: Sequence[Piece]) -> dict[str, Any]:
    """Of the images as they came: smallest and largest width and height, and how many of each kind of pixels."""
    modes: Counter[str] = sum((Counter(one["modes"]) for one in done), Counter())
    if not modes:
        raise ValueError("none of the images can be read; check that they are image files of a supported format")
    sides = {name: _range([side for one in done for side in one[name]]) for name in ("widths", "heights")}
    return {"modes": dict(modes)} | sides
