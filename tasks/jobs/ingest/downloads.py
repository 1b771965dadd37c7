"""Downloaded sources: their own code reads the files, in one piece of work."""

import math
import os
from collections import Counter
from collections.abc import Sequence
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
    """Return nothing: only `make` reads the source's rows, which it numbers as they come."""
    return []


def survey(piece: Piece, spec: IngestSpec) -> Piece:
    """Never called, since there is nothing to survey."""
    raise NotImplementedError


def plan(spec: IngestSpec, surveyed: Sequence[Piece]) -> Work:
    """Return the whole source as one piece of an unknown number of rows."""
    source = _source(spec)
    return Work(shape=source.image_shape, classes=source.classes, pieces=[{"rows": 0}])


def make(piece: Piece, spec: IngestSpec, *, classes: tuple[str, ...]) -> Piece:
    """Write the parts of every split; `read` gets the files under their own names, each verified by its SHA-256."""
    source, stored = _source(spec), {file.path: file for file in manifest.load(spec.source).files}
    listed: list[File] = []
    labels: dict[str, Counter[int]] = {}
    with files.workspace(spec.scratch) as folder:
        for file in source.files:
            manifest.fetch_file(spec.source, stored[file.stored], folder / file.name)
        for split in source.read(folder):
            listed += write_split(source, spec.target, split)
            labels[split.name] = Counter(split.labels.tolist())
    return pieces.written(listed, labels)


def finish(spec: IngestSpec, done: Sequence[Piece]) -> tuple[list[File], dict[str, Any]]:
    """Return the source and notice of the files from their manifest; write nothing more."""
    made = manifest.load(spec.source)
    return [], {"sources": made.statistics["sources"], "notice": _source(spec).notice}


def write_split(source: Source, uri: DatasetURI, split: Split) -> list[File]:
    """Write every row of `split` below `uri`, a part at a time.

    Parts are compressed in parallel, one per core, but written one by one in this thread, which a deadline can
    interrupt. Raises `ValueError` if the rows do not fit `source`.
    """
    _check(source, split)
    files.check_space(uri, needed=math.prod(split.images.shape))
    rows = len(split.labels)
    bounds = images.part_bounds(rows, images.num_parts(rows, source.image_shape))

    def encoded(bound: tuple[int, int]) -> bytes:
        here = slice(*bound)
        ids = np.arange(here.start, here.stop)
        return tables.encode(images.to_table(ids, split.images[here], split.labels[here], classes=source.classes))

    listed = []
    contents = dataset_parts.in_threads(encoded, bounds, threads=os.cpu_count() or 1)
    for index, ((start, stop), content) in enumerate(zip(bounds, contents, strict=True)):
        listed.append(tables.write_encoded(uri, content, rows=stop - start, split=split.name, index=index))
        events.progress("parts of a split written", index + 1, len(bounds), fraction=(index + 1) / len(bounds) / 2)
    return listed


def _check(source: Source, split: Split) -> None:
    if split.images.dtype != np.uint8 or split.images.shape[1:] != source.image_shape:
        found = f"{split.images.dtype} {split.images.shape[1:]}"
        raise ValueError(f"{source.name} {split.name}: images must be uint8 {source.image_shape}, got {found}")
    if len(split.images) == 0:
        raise ValueError(f"{source.name} {split.name}: `read` returned no images")
    if split.labels.dtype.kind not in "iu" or split.labels.shape != (len(split.images),):
        found = f"{split.labels.dtype} {split.labels.shape}"
        raise ValueError(f"{source.name} {split.name}: labels must be int64 ({len(split.images)},), got {found}")


def _source(spec: IngestSpec) -> Source:
    assert spec.source_name is not None
    return sources.load(spec.source_name)
