"""A person's own Parquet files of images: a piece of work is a file."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from storage import streams, tables
from storage.manifest import File
from storage.uri import URI
from tasks.jobs.ingest import own_files, parquet_images
from tasks.jobs.ingest.own_files import finish, parents
from tasks.jobs.ingest.parquet_images import Opened
from tasks.jobs.ingest.pieces import Piece, Work
from tasks.jobs.spec import IngestSpec, SourceEntry
from tasks.learning import images
from tasks.learning.decode import Decoded

__all__ = ["finish", "make", "parents", "plan", "survey", "to_survey"]


def to_survey(spec: IngestSpec) -> list[Piece]:
    """List every file: how many rows it has and which labels, only it can tell."""
    return [{"file": file.model_dump()} for file in own_files.listed(spec)]


def survey(piece: Piece, spec: IngestSpec) -> Piece:
    """Count the rows of one file, and list its labels."""
    file = SourceEntry(**piece["file"])
    with _opened(spec, file) as (source, _):
        return parquet_images.survey(source)


def plan(spec: IngestSpec, surveyed: Sequence[Piece]) -> Work:
    """Give each file the number of its first part and the id of its first row in its split."""
    first, part = Counter[str](), Counter[str]()
    shape, planned = own_files.shape_of(spec), []
    for file, found in zip(own_files.listed(spec), surveyed, strict=True):
        parts = images.num_parts(found["rows"], shape) if found["rows"] else 0
        begin = {"first": first[file.split], "part": part[file.split]}
        planned.append({"file": file.model_dump(), "parts": parts, "rows": found["rows"], **begin})
        first[file.split] += found["rows"]
        part[file.split] += parts
    return Work(shape=shape, classes=parquet_images.classes_of(surveyed), pieces=planned)


def make(piece: Piece, spec: IngestSpec, *, classes: tuple[str, ...]) -> Piece:
    """Write the parts that one file becomes, of which one is in memory at a time."""
    file = SourceEntry(**piece["file"])
    size, channels = own_files.size_of(spec)
    parts: list[File] = []
    decoded: list[Decoded | None] = []
    labels: list[int | None] = []
    bounds = images.part_bounds(piece["rows"], piece["parts"]) if piece["parts"] else []
    with _opened(spec, file) as (source, digest):
        for (start, _), rows in zip(bounds, parquet_images.tables(source, bounds), strict=True):
            some, its = parquet_images.rows(rows, size=size, channels=channels, classes=classes)
            table = own_files.to_table(piece["first"] + start, some, its, spec, classes)
            parts.append(tables.write_part(spec.target, table, split=file.split, index=piece["part"] + len(parts)))
            decoded += [one and dataclasses.replace(one, pixels=b"") for one in some]
            labels += its
    broken = decoded.count(None)
    about = {"split": file.split, "first_id": piece["first"], "rows": piece["rows"], "path": file.path}
    problem = f"{broken} of {piece['rows']} images are missing or cannot be read" if broken else ""
    about |= {"size": file.size, "sha256": digest, "problem": problem}
    return own_files.written(file.split, parts, decoded, labels, [about])


@contextlib.contextmanager
def _opened(spec: IngestSpec, file: SourceEntry) -> Iterator[tuple[Opened, str]]:
    """A local copy of one file, opened, and its SHA-256; a `ValueError` inside names the file."""
    with streams.workspace(URI(spec.scratch)) as folder:
        path = folder / "copy.parquet"
        digest = own_files.bring(spec, file, path)
        try:
            yield parquet_images.opened(path), digest
        except ValueError as error:
            raise ValueError(f"{spec.source.child(file.path)}: {error}") from None
