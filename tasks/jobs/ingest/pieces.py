"""What a source of images looks like to the job, and what the job is told of each piece of work."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from storage.manifest import File
from storage.uri import URI
from tasks.jobs.spec import IngestSpec

Piece = dict[str, Any]
"""A piece of work, or what came of one, as JSON values: on a cluster it goes to another process and back."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """All that is to be done, once it is known which rows there are."""

    shape: tuple[int, int, int]
    """Height, width and channels of every image."""
    classes: tuple[str, ...]
    """Name of each label, from 0."""
    pieces: Sequence[Piece]
    """Independent of each other, in the order of their parts; `rows` in each, 0 where that is not known."""


class Source(Protocol):
    """One kind of source: a module of this package."""

    def to_survey(self, spec: IngestSpec) -> list[Piece]:
        """List what has to be looked through before rows can be numbered; nothing where that is known."""

    def survey(self, piece: Piece, spec: IngestSpec) -> Piece:
        """Count the rows of one piece, which may be done on another node."""

    def plan(self, spec: IngestSpec, surveyed: Sequence[Piece]) -> Work:
        """Divide the work, given what `survey` found of each piece that `to_survey` listed."""

    def make(self, piece: Piece, spec: IngestSpec, *, classes: tuple[str, ...]) -> Piece:
        """Write the parts of one piece, which may be done on another node, and return what `written` makes of them."""

    def finish(self, spec: IngestSpec, done: Sequence[Piece]) -> tuple[list[File], dict[str, Any]]:
        """Write what goes beside the parts; return its files, and what the manifest's statistics say of the source."""

    def parents(self, spec: IngestSpec) -> dict[str, URI]:
        """Name the committed results that the rows come from."""


def written(parts: Sequence[File], labels: dict[str, Counter[int]], **more: Any) -> Piece:
    """Say what came of a piece: its parts, how often each split has each label, and what its source wants to know."""
    counted = {split: {str(label): count for label, count in found.items()} for split, found in labels.items()}
    return {"parts": [part.model_dump() for part in parts], "labels": counted, **more}


def class_counts(done: Sequence[Piece], classes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the rows of each class in each split; rows with another label stay, and preprocess leaves them out."""
    total: dict[str, Counter[str]] = {}
    for one in done:
        for split, labels in one["labels"].items():
            total.setdefault(split, Counter()).update(labels)
    return {split: {name: counts[str(label)] for label, name in enumerate(classes)} for split, counts in total.items()}
