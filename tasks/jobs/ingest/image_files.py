"""A person's own images that are a file each: a piece of work is a part."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from storage import tables
from tasks.jobs.ingest import own_files
from tasks.jobs.ingest.own_files import finish, parents
from tasks.jobs.ingest.pieces import Piece, Work
from tasks.jobs.spec import IngestSpec, SourceEntry
from tasks.learning import decode, images
from tasks.learning.decode import Decoded

__all__ = ["finish", "make", "parents", "plan", "survey", "to_survey"]

_READERS = 8
"""Files that one piece reads at a time."""


def to_survey(spec: IngestSpec) -> list[Piece]:
    """Nothing: each file is a row."""
    return []


def survey(piece: Piece, spec: IngestSpec) -> Piece:
    """Never called."""
    raise AssertionError(piece)


def plan(spec: IngestSpec, surveyed: Sequence[Piece]) -> Work:
    """Divide the files into parts: a part's number in its split, the id of its first row, and its files."""
    listed, shape, pieces = own_files.listed(spec), own_files.shape_of(spec), []
    for split in ("train", "test"):
        here = [file.model_dump() for file in listed if file.split == split]
        bounds = images.part_bounds(len(here), images.num_parts(len(here), shape))
        for index, (start, stop) in enumerate(bounds):
            piece = {"split": split, "part": index, "first": start, "rows": stop - start, "files": here[start:stop]}
            pieces.append(piece)
    return Work(shape=shape, classes=tuple(spec.classes), pieces=pieces)


def make(piece: Piece, spec: IngestSpec, *, classes: tuple[str, ...]) -> Piece:
    """Write one part."""
    listed = [SourceEntry(**entry) for entry in piece["files"]]
    with ThreadPoolExecutor(_READERS) as pool:
        made = list(pool.map(lambda file: _image(spec, file), listed))
    decoded, labels = [image for image, _ in made], [file.label for file in listed]
    table = own_files.to_table(piece["first"], decoded, labels, spec, classes)
    part = tables.write_part(spec.target, table, split=piece["split"], index=piece["part"])
    sources = [
        about | {"split": piece["split"], "first_id": piece["first"] + number, "rows": 1, "path": file.path}
        for number, (file, (_, about)) in enumerate(zip(listed, made, strict=True))
    ]
    return own_files.written(piece["split"], [part], decoded, labels, sources)


def _image(spec: IngestSpec, file: SourceEntry) -> tuple[Decoded | None, dict[str, Any]]:
    content, digest = own_files.read(spec, file)
    about = {"size": file.size, "sha256": digest, "problem": ""}
    try:
        return decode.decoded(content, *own_files.size_of(spec)), about
    except decode.Unreadable as error:
        return None, about | {"problem": str(error)}
