"""Downloaded sources: their own code reads the files; a piece of work is a shard (most have one)."""

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storage import files, manifest, tables
from storage.manifest import File
from storage.uri import DatasetURI
from tasks.jobs import dataset_parts, events
from tasks.jobs.ingest import pieces
from tasks.jobs.ingest.pieces import Piece, Work
from tasks.jobs.spec import IngestSpec
from tasks.learning import images, sources
from tasks.learning.sources import Source, Split


def to_survey(spec: IngestSpec) -> list[Piece]:
    """List the shards if there are several: only then must rows be counted first."""
    shards = _shards(_source(spec))
    return [{"shard": shard} for shard in shards] if len(shards) > 1 else []


def survey(piece: Piece, spec: IngestSpec) -> Piece:
    """Count the rows of each split of one shard."""
    with _local_copy(spec, piece["shard"]) as folder:
        return {"rows": {split.name: len(split.labels) for split in _source(spec).read(folder)}}


def plan(spec: IngestSpec, surveyed: Sequence[Piece]) -> Work:
    """Assign to each shard, for each split, the id of its first row and the number of its first part."""
    source = _source(spec)
    shards = _shards(source)
    counted = [shard_rows["rows"] for shard_rows in surveyed] or [{} for _ in shards]
    first, part = Counter[str](), Counter[str]()
    planned = []
    for shard, rows in zip(shards, counted, strict=True):
        begins = {split: {"first": first[split], "part": part[split], "rows": rows[split]} for split in rows}
        planned.append({"shard": shard, "begins": begins, "rows": sum(rows.values()), "is_alone": len(shards) == 1})
        first.update(rows)
        part.update({split: images.num_parts(rows[split], source.image_shape) for split in rows})
    return Work(shape=source.image_shape, classes=source.classes, pieces=planned)


def make(piece: Piece, spec: IngestSpec, *, classes: tuple[str, ...]) -> Piece:
    """Write the parts of one shard; if it is the only shard, compress its parts in parallel."""
    source, shard = _source(spec), piece["shard"]
    parts: list[File] = []
    labels: dict[str, Counter[int]] = {}

    def on_part(done: int, total: int) -> None:
        events.progress("parts of a split written", done, total, fraction=done / total / 2)

    # With several pieces, the cores are busy with the other pieces, and the job reports how many pieces are done.
    how: dict[str, Any] = {"on_part": on_part} if piece["is_alone"] else {"threads": 1}
    with _local_copy(spec, shard) as folder:
        for split in source.read(folder):
            rows = len(split.labels)
            begin = piece["begins"].get(split.name, {"first": 0, "part": 0, "rows": 0})
            if begin["rows"] != rows and not piece["is_alone"]:
                raise ValueError(
                    f"{source.name} {split.name}: shard {shard!r} had {begin['rows']} rows when counted, and "
                    f"{rows} now; `read` must return the same rows every time"
                )
            parts += write_split(source, spec.target, split, first=begin["first"], part=begin["part"], **how)
            labels[split.name] = Counter(split.labels.tolist())
    return pieces.written(parts, labels)


def finish(spec: IngestSpec, done: Sequence[Piece]) -> tuple[list[File], dict[str, Any]]:
    """Return the source and notice of the files from their manifest; write nothing more."""
    downloaded = manifest.load(spec.source)
    return [], {"sources": downloaded.statistics["sources"], "notice": _source(spec).notice}


def write_split(
    source: Source,
    uri: DatasetURI,
    split: Split,
    *,
    first: int = 0,
    part: int = 0,
    threads: int | None = None,
    on_part: Callable[[int, int], None] = lambda done, total: None,
) -> list[File]:
    """Write every row of `split` below `uri`, a part at a time.

    Up to `threads` parts (None: one per core) are compressed in parallel, but written one by one in this thread, which
    a deadline can interrupt. Raises `ValueError` if the rows do not fit `source`.

    Args:
        source: Gives the classes, and the shape that images must have.
        uri: Raw dataset to write to.
        split: Rows to write.
        first: Id of the first row.
        part: Number of the first part.
        threads: Number of parts to compress at a time.
        on_part: Called after each part with the number of written parts and of all parts.
    """
    _check(source, split)
    files.check_space(uri, needed=math.prod(split.images.shape))
    rows = len(split.labels)
    bounds = images.part_bounds(rows, images.num_parts(rows, source.image_shape))

    def encoded(bound: tuple[int, int]) -> bytes:
        span = slice(*bound)
        ids = np.arange(first + span.start, first + span.stop)
        return tables.encode(images.to_table(ids, split.images[span], split.labels[span], classes=source.classes))

    listed = []
    contents = dataset_parts.in_threads(encoded, bounds, threads=threads or os.cpu_count() or 1)
    for index, ((start, stop), content) in enumerate(zip(bounds, contents, strict=True)):
        listed.append(tables.write_encoded(uri, content, rows=stop - start, split=split.name, index=part + index))
        on_part(len(listed), len(bounds))
    return listed


def _check(source: Source, split: Split) -> None:
    if split.images.dtype != np.uint8 or split.images.shape[1:] != source.image_shape:
        actual = f"{split.images.dtype} {split.images.shape[1:]}"
        raise ValueError(f"{source.name} {split.name}: images must be uint8 {source.image_shape}, got {actual}")
    if len(split.images) == 0:
        raise ValueError(f"{source.name} {split.name}: `read` returned no images")
    if split.labels.dtype.kind not in "iu" or split.labels.shape != (len(split.images),):
        actual = f"{split.labels.dtype} {split.labels.shape}"
        raise ValueError(f"{source.name} {split.name}: labels must be int64 ({len(split.images)},), got {actual}")


def _source(spec: IngestSpec) -> Source:
    assert spec.source_name is not None
    return sources.load(spec.source_name)


def _shards(source: Source) -> list[str]:
    return list(dict.fromkeys(file.shard for file in source.files)) or [""]


@contextlib.contextmanager
def _local_copy(spec: IngestSpec, shard: str) -> Iterator[Path]:
    """Yield a local folder with the files of one shard under their own names, each verified by its SHA-256."""
    entries = {file.path: file for file in manifest.load(spec.source).files}
    with files.workspace(spec.scratch) as folder:
        for file in _source(spec).files:
            if file.shard == shard:
                manifest.fetch_file(spec.source, entries[file.stored], folder / file.name)
        yield folder
