"""Kinds of results, one entry each: a new kind needs an entry here and the code that makes it."""

import dataclasses
from typing import Any, Final, Generic, TypeVar

from storage import statistics
from storage.uri import URI, Root

U = TypeVar("U", bound=URI)
S = TypeVar("S", bound=statistics.Statistics)
RUNS: Final = "runs"
"""Folder below a root for the scratch files of attempts, in a folder with the name of the result."""
PROBABILITY_PREFIX: Final = "probability_"
"""Prefix of the name of the column with a class's probability, in predictions; the rest is the name of the class."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Kind(Generic[U, S]):
    """One kind of result."""

    name: str
    """Name in manifests and on the command line."""
    folder: str
    """Folder below a storage root."""
    uri: type[U]
    statistics: type[S]
    """What its manifest records about it."""
    stage: str
    """Stage that makes it; part of the fingerprint."""
    version: int = 1
    """Version of the stage; add one when a change of the stage changes its bytes, so that new results get new URIs."""
    parents: tuple[str, ...] = ()
    """Roles of the results that it may be made from."""
    stays_with_champion: bool = False
    """Whether gc keeps what was made with a champion as long as the champion."""

    def place(self, root: Root, name: str) -> U:
        return self.uri(root.child(f"{self.folder}/{name}"))

    def holds(self, uri: URI) -> bool:
        return uri.parent.endswith(f"/{self.folder}")


class FilesURI(URI):
    """A committed download: a source's files as their mirror served them."""


class DatasetURI(URI):
    """A committed dataset, raw or prepared."""


class EmbeddingsURI(URI):
    """Committed embeddings of the images of a prepared dataset."""


class CheckpointURI(URI):
    """A committed checkpoint."""


class PredictionsURI(URI):
    """Committed predictions of one checkpoint on one dataset."""


class EvaluationURI(URI):
    """A committed evaluation of predictions on a test split."""


class ReportURI(URI):
    """A committed report; the page is `index.html` in it."""


class AuditURI(URI):
    """A committed audit: the images whose labels may be wrong; the page is `index.html` in it."""


class ExportURI(URI):
    """A committed export: a model as a file for other programs, proven on the test rows."""


FILES = Kind(name="files", folder="downloads", uri=FilesURI, statistics=statistics.FilesStatistics, stage="download")
RAW = Kind(
    name="raw",
    folder="datasets/raw",
    uri=DatasetURI,
    statistics=statistics.RawStatistics,
    stage="ingest",
    version=2,
    parents=("files", "embeddings"),
)
PREPARED = Kind(
    name="prepared",
    folder="datasets/prepared",
    uri=DatasetURI,
    statistics=statistics.PreparedStatistics,
    stage="preprocess",
    parents=("raw", "embeddings"),
)
EMBEDDINGS = Kind(
    name="embeddings",
    folder="embeddings",
    uri=EmbeddingsURI,
    statistics=statistics.EmbeddingsStatistics,
    stage="embed",
    parents=("prepared", "raw", "initial", "weights"),
)
CHECKPOINT = Kind(
    name="checkpoint",
    folder="checkpoints",
    uri=CheckpointURI,
    statistics=statistics.CheckpointStatistics,
    stage="train",
    version=2,
    parents=("prepared", "initial", "weights", "embeddings"),
)
PREDICTIONS = Kind(
    name="predictions",
    folder="predictions",
    uri=PredictionsURI,
    statistics=statistics.PredictionsStatistics,
    stage="predict",
    parents=("checkpoint", "dataset", "embeddings"),
    stays_with_champion=True,
)
EVALUATION = Kind(
    name="evaluation",
    folder="evaluations",
    uri=EvaluationURI,
    statistics=statistics.EvaluationStatistics,
    stage="evaluate",
    version=2,
    parents=("predictions",),
    stays_with_champion=True,
)
REPORT = Kind(
    name="report",
    folder="reports",
    uri=ReportURI,
    statistics=statistics.ReportStatistics,
    stage="report",
    parents=("checkpoint", "predictions", "evaluation"),
    stays_with_champion=True,
)
EXPORT = Kind(
    name="export",
    folder="exports",
    uri=ExportURI,
    statistics=statistics.ExportStatistics,
    stage="export",
    version=3,
    parents=("checkpoint", "prepared"),
    stays_with_champion=True,
)
AUDIT = Kind(
    name="audit",
    folder="audits",
    uri=AuditURI,
    statistics=statistics.AuditStatistics,
    stage="audit",
    version=2,
    parents=("embeddings",),
)
KINDS: Final[dict[str, Kind[Any, Any]]] = {
    kind.name: kind
    for kind in (FILES, RAW, PREPARED, EMBEDDINGS, CHECKPOINT, PREDICTIONS, EVALUATION, REPORT, EXPORT, AUDIT)
}
"""Every kind by its name; each comes after the kinds it is made from."""
