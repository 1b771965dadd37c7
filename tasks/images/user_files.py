"""Common code for the user's own image files and Parquet files, which were listed before the job began."""

import dataclasses
import hashlib
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage import commits, files, s3, tables
from storage.manifest import JSON, File
from storage.statistics import Origin, Provenance
from storage.uri import URI
from tasks.images import image_facts, row_tables, user_images
from tasks.images.listing import UserFile
from tasks.images.pieces import Written
from tasks.images.user_images import UserImages
from tasks.learning import decode, images
from tasks.learning.decode import Decoded
from tasks.stages import Ingest

COLUMNS = row_tables.SCHEMA.append(pa.field("unreadable", pa.int64()))
"""What is known of each file while it is ingested."""
_SHOWN = 20
"""Most unreadable images in the manifest's statistics; the table of sources names all files with such images."""


def listed(stage: Ingest) -> UserImages:
    assert stage.listing is not None
    return user_images.read(stage.listing)


def place_of(stage: Ingest) -> URI:
    assert stage.place is not None
    return stage.place


def shape_of(stage: Ingest) -> tuple[int, int, int]:
    """Return height, width and channels of an image."""
    return stage.image_size, stage.image_size, stage.channels


def read(stage: Ingest, file: UserFile) -> tuple[bytes, str]:
    """Read a listed file; return content and SHA-256, or raise `ValueError` if it has changed since it was listed."""
    sink = io.BytesIO()
    digest = copy(stage, file, sink)
    return sink.getvalue(), digest


def copy(stage: Ingest, file: UserFile, sink: BinaryIO) -> str:
    """Copy a listed file of any size to `sink`; return its SHA-256, or raise `ValueError` as `read` does."""
    uri, digest, size = place_of(stage).child(file.path), hashlib.sha256(), 0
    kind, _, value = file.digest.partition(":")
    changed = ValueError(f"{uri} changed after it was listed; run the same command again")
    try:
        for content in files.pieces(uri, etag=value if kind == "etag" else None):
            sink.write(content)
            digest.update(content)
            size += len(content)
    except (s3.Overwritten, FileNotFoundError):
        raise changed from None
    if size != file.size or (kind == "sha256" and value != digest.hexdigest()):
        raise changed
    return digest.hexdigest()


def decoded(content: bytes | None, stage: Ingest) -> tuple[Decoded | None, str]:
    """Return an image as it is stored, and no problem; or None if it is missing or unreadable, and the problem."""
    if content is None:
        return None, "missing"
    size, _, channels = shape_of(stage)
    limit = stage.max_megapixels
    try:
        image = decode.decoded(content, size, channels, with_facts=not stage.is_new, max_megapixels=limit)
    except decode.Unreadable as error:
        return None, str(error)
    return dataclasses.replace(image, pixels=content) if stage.store == images.FILES else image, ""


def write_part(
    stage: Ingest,
    pictures: Sequence[Decoded | None],
    labels: Sequence[int | None],
    classes: Sequence[str],
    *,
    split: str,
    index: int,
    first: int,
) -> list[File]:
    """Write a part of images with ids from `first` on, and their facts unless they are to be predicted.

    An image that could not be read has no pixels.
    """
    columns = images.schema(shape_of(stage), classes, store=stage.store)
    arrays = [
        pa.array(range(first, first + len(pictures)), pa.int64()),
        pa.array([image and image.pixels for image in pictures], columns.field("image").type),
        pa.array(labels, pa.int64()),
    ]
    part = tables.write_part(stage.target, pa.table(arrays, schema=columns), split=split, index=index)
    return [part] if stage.is_new else [part, image_facts.write(stage.target, pictures, split=split, index=index)]


def written(
    split: str,
    parts: Sequence[File],
    labels: Sequence[int | None],
    sources: Sequence[JSON],
    problems: Mapping[str, str],
) -> Written:
    """Describe a written piece: its parts, labels and files, and the `problems` of unreadable images by name."""
    return Written(
        parts=sorted(parts, key=lambda part: part.split is None),  # facts last
        labels={split: Counter(label for label in labels if label is not None)},
        sources=pa.Table.from_pylist(sources, schema=COLUMNS),
        unreadable=[f"{name} ({problem})" for name, problem in problems.items()][:_SHOWN],
    )


def finish(stage: Ingest, done: Sequence[Written]) -> tuple[list[File], Provenance]:
    """Write the table of sources; return it, and the provenance; raise `ValueError` if no image can be predicted."""
    sources = pa.concat_tables([piece.sources for piece in done]).combine_chunks()
    unreadable, rows = (pc.sum(sources[name]).as_py() or 0 for name in ("unreadable", "rows"))
    named = [name for piece in done for name in piece.unreadable][:_SHOWN]
    if stage.is_new and unreadable == rows:  # training refuses far fewer
        first = next(iter(named), "there are no images")
        raise ValueError(f"no image in {stage.place} could be read (first: {first}); use files of a supported format")
    listing, sink = listed(stage), io.BytesIO()
    pq.write_table(sources.select(row_tables.SCHEMA.names), sink, compression="zstd")
    table = commits.write_file(stage.target, f"{row_tables.SOURCES}.parquet", sink.getvalue())
    name = f"{len(sources):,} files, listed in {table.path}"
    return [table], Provenance(
        sources=(
            Origin(name=name, sha256=listing.digest, url=listing.uri),
            *[Origin(name="labels", sha256=listing.digest, url=listing.table)] * bool(listing.table),
        ),
        left_out=listing.left_out,
        unreadable=tuple(named),
        notice=None,
    )
