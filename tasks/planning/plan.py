"""Plan of a run: the URI of every result, and what each task needs besides these, as plain values."""

import dataclasses
from typing import Any

from storage import reference
from storage.uri import URI, CheckpointURI, DatasetURI, EvaluationURI, FilesURI, PredictionsURI, Root
from tasks.images.user_images import UserImages
from tasks.learning.recipes import Recipe
from tasks.learning.sources import Download, Source
from tasks.stages import PredictParameters, TrainParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Time limits of the stages of a run, in seconds."""

    stage_s: float = 24 * 3600.0
    """Seconds after which a stage is aborted."""
    stall_s: float = 600.0
    """Seconds without progress after which a training worker is restarted, or the wait for a cluster's nodes ends."""

    def of_job(self, target: URI) -> dict[str, Any]:
        """Return the fields that the specs of all jobs share."""
        root = reference.root_of(target)
        return {"storage": root, "target": target, "deadline_s": self.stage_s, "stall_s": self.stall_s}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DownloadParameters:
    """Parameters of the task `download`."""

    name: str
    """Name of the source, or of the folder with the user's images."""
    source: Source | None
    """What to download; None with `--data`."""
    weights: Download | None = None
    """Initial weights to download or copy; None: there are none, or nothing needs them any more."""
    mirrors: tuple[str, ...] = ()
    """Addresses to try before the published ones."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IngestParameters:
    """Parameters of the task `ingest`."""

    name: str
    """Name of the source, or of the folder with the user's images."""
    values: dict[str, Any]
    """Values that the raw dataset records."""
    source: Source | None = None
    """Source whose files were downloaded; None for the user's images and for an existing raw dataset."""
    source_name: str | None = None
    """The source as a recipe names it."""
    user_images: UserImages | None = None
    """The user's images; None for a source's files."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromoteParameters:
    """Parameters of the task `promote`."""

    registered_model: str
    """Registered model whose champion the new model competes with."""
    gate: dict[str, Any]
    """Settings of the gate, as `tasks.promotion.gate.Gate` describes them."""
    predict: PredictParameters
    """How a champion without predictions on the same rows predicts them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportParameters:
    """Parameters of the task `report`."""

    recipe_name: str
    data_name: str
    values: dict[str, Any]
    """Values that the report shows as those of the run."""
    changes: dict[str, Any]
    """Fields in which the recipe differs from its original."""
    command: str
    """Command that makes the same results in another storage root."""
    registered_model: str
    """Registered model that the new model competed for."""
    register_as: str | None = None
    """Registered model that the user named; None: the default one of the data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, as `make_plan` found storage; the same request gives the same URIs."""

    root: Root
    recipe: Recipe
    needs_ray: bool
    """Whether a stage that runs on Ray has no committed result, including predictions of the rival."""
    registered_model: str
    """Registered model to compete for."""
    image_shape: tuple[int, int, int] | None
    """Height, width and channels; None until the images are read."""
    classes: tuple[str, ...] | None
    """Names of the classes; None until the images are read."""

    files: FilesURI | None
    """The source's unchanged files; None with `--data`, and if they are gone but the raw dataset exists."""
    raw: DatasetURI
    """The raw dataset: the images in Parquet, not yet checked."""
    prepared: DatasetURI
    """The prepared dataset: checked, split and shuffled; named after the raw one, so that recipes share it."""
    checkpoint: CheckpointURI
    """The model of the best epoch."""
    predictions: PredictionsURI
    """The model's predictions on the test rows."""
    evaluation: EvaluationURI
    """The model's metrics on the test rows."""
    rival: CheckpointURI | None
    """The models that the new one will be compared with, if no other run changes the champion meanwhile."""
    uses: tuple[URI, ...]
    """All URIs that the run reads or writes, including the rival; not the report, whose URI needs the decision."""

    download: DownloadParameters
    ingest: IngestParameters
    preprocess: dict[str, Any]
    """Values that determine the prepared dataset besides the raw one."""
    train: TrainParameters
    predict: PredictParameters
    promote: PromoteParameters
    report: ReportParameters
    timeouts: Timeouts
