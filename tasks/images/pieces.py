"""Interface of a source of images to the ingest job, and the descriptions of pieces of work."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from storage.manifest import File
from tasks.stages import IngestSpec

Piece = dict[str, Any]
"""Piece of work, or its result, as JSON values: on a cluster it goes to another process and back."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """All pieces to write, planned once the rows are known."""

    shape: tuple[int, int, int]
    """Height, width and channels of every image."""
    classes: tuple[str, ...]
    """Name of each label, from 0."""
    pieces: Sequence[Piece]
    """Independent pieces in the order of their parts; each has `rows`, 0 if unknown."""
    labels: str = ""
    """Where the labels of the user's own files were read from, in words."""


class Source(Protocol):
    """One kind of source, implemented by a module of this package."""

    def to_survey(self, spec: IngestSpec) -> list[Piece]:
        """List the pieces to survey before rows can be numbered; empty if the rows are known."""

    def survey(self, piece: Piece, spec: IngestSpec) -> Piece:
        """Count the rows of one piece; may run on another node."""

    def plan(self, spec: IngestSpec, surveyed: Sequence[Piece]) -> Work:
        """Divide the work, given what `survey` found of each piece that `to_survey` listed."""

    def make(self, piece: Piece, spec: IngestSpec, *, classes: tuple[str, ...]) -> Piece:
        """Write the parts of one piece and return the result of `written`; may run on another node."""

    def finish(self, spec: IngestSpec, done: Sequence[Piece]) -> tuple[list[File], dict[str, Any]]:
        """Write the files beside the parts; return them, and the source's entries for the manifest's statistics."""


def written(parts: Sequence[File], labels: dict[str, Counter[int]], **more: Any) -> Piece:
    """Describe a written piece: its parts, how often each split has each label, and the source's own entries."""
    counted = {split: {str(label): count for label, count in counts.items()} for split, counts in labels.items()}
    return {"parts": [part.model_dump() for part in parts], "labels": counted, **more}


def class_counts(done: Sequence[Piece], classes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the rows of each class in each split; rows with other labels are not counted (preprocess drops them)."""
    total: dict[str, Counter[str]] = {}
    for piece in done:
        for split, labels in piece["labels"].items():
            total.setdefault(split, Counter()).update(labels)
    return {split: {name: counts[str(label)] for label, name in enumerate(classes)} for split, counts in total.items()}
