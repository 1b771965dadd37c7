"""Downloaded sources: their own code reads the files, all of them in one piece of work."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from storage import files, manifest, tables
from storage.kinds import FILES, DatasetURI
from storage.manifest import File
from storage.statistics import Provenance
from tasks.images.pieces import Piece, Survey, Work, Written
from tasks.jobs import events
from tasks.learning import images, sources
from tasks.learning.sources import Source, Split
from tasks.stages import Ingest


def plan(stage: Ingest, survey: Survey) -> Work:
    """Return one piece for all rows, which counts them itself."""
    source = sources.load(stage.source)
    return Work(shape=source.image_shape, classes=source.classes, pieces=[Piece()])


def make(piece: Piece, stage: Ingest, *, classes: tuple[str, ...]) -> Written:
    """Write the parts of each split, whose files are verified by their SHA-256."""
    source, downloaded = sources.load(stage.source), stage.made_from
    entries = {file.path: file for file in manifest.load(downloaded).files}
    parts: list[File] = []
    labels: dict[str, Counter[int]] = {}
    with files.workspace(stage.scratch) as folder:
        for file in source.files:
            manifest.fetch_file(downloaded, entries[file.stored], folder / file.name)
        for split in source.read(folder):
            parts += write_split(source, stage.target, split)
            labels[split.name] = Counter(split.labels.tolist())
    return Written(parts=parts, labels=labels)


def finish(stage: Ingest, done: Sequence[Written]) -> tuple[list[File], Provenance]:
    """Return the source and notice of the files from their manifest; write nothing more."""
    published = manifest.load(stage.made_from).statistics_of(FILES).sources
    return [], Provenance(sources=published, notice=sources.load(stage.source).notice)


def write_split(source: Source, uri: DatasetURI, split: Split) -> list[File]:
    """Write every row of `split` below the raw dataset `uri`, a part at a time.

    Raises `ValueError` if the rows do not fit `source`.
    """
    _check(source, split)
    files.check_space(uri, needed=math.prod(split.images.shape))
    rows = len(split.labels)
    bounds = images.part_bounds(rows, images.num_parts(rows, source.image_shape))
    listed = []
    for index, bound in enumerate(bounds):
        span = slice(*bound)
        part = images.to_table(np.arange(*bound), split.images[span], split.labels[span], classes=source.classes)
        listed.append(tables.write_part(uri, part, split=split.name, index=index))
        fraction = len(listed) / len(bounds) / 2
        events.progress("parts of a split written", len(listed), len(bounds), fraction=fraction)
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
