"""Interface of a source of images to the ingest job, and the pieces of its work; any process of a cluster does them."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from storage.manifest import File
from storage.statistics import Provenance
from tasks.images.listing import UserFile
from tasks.stages import Ingest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """Some files of one split; their rows become parts of their own."""

    files: Sequence[UserFile] = ()
    split: str = ""
    rows: int = 0
    """Rows of all files; 0 if unknown."""
    first: int = 0
    """Id of the first row in its split."""
    part: int = 0
    """Number of the first part in its split."""
    num_parts: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """The result of a piece."""

    parts: Sequence[File]
    labels: dict[str, Counter[int]]
    """How often each split has each label."""
    sources: pa.Table = None
    """What is known of each of the user's files, with the columns of `user_files.COLUMNS`."""
    unreadable: Sequence[str] = ()
    """The first images that could not be read, and why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """All pieces to write, planned once the rows are known."""

    shape: tuple[int, int, int]
    """Height, width and channels of every image."""
    classes: tuple[str, ...]
    """Name of each label, from 0."""
    pieces: Sequence[Piece]
    """Independent pieces in the order of their parts."""
    labels: str = ""
    """Where the labels of the user's own files were read from, in words."""


Survey = Callable[[Callable[[Piece, Ingest], Any], Sequence[Piece]], list[Any]]
"""Calls a function with each piece, on any node; returns what it found in their order."""


class Source(Protocol):
    """One kind of source, implemented by a module of this package."""

    def plan(self, stage: Ingest, survey: Survey) -> Work:
        """Divide the work; `survey` looks into files whose rows cannot be numbered otherwise."""

    def make(self, piece: Piece, stage: Ingest, *, classes: tuple[str, ...]) -> Written:
        """Write the parts of one piece; may run on another node."""

    def finish(self, stage: Ingest, done: Sequence[Written]) -> tuple[list[File], Provenance]:
        """Write the files beside the parts; return them, and where the images came from."""


def class_counts(done: Sequence[Written], classes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the rows of each class in each split; rows with other labels are not counted (preprocess drops them)."""
    total: dict[str, Counter[int]] = {}
    for piece in done:
        for split, labels in piece.labels.items():
            total.setdefault(split, Counter()).update(labels)
    return {split: {name: counts[label] for label, name in enumerate(classes)} for split, counts in total.items()}
