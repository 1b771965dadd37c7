"""Plan of a run: the URI of every result and the parameters of every task, as plain values."""

import dataclasses
from typing import Any

from storage.uri import URI, CheckpointURI, DatasetURI, EvaluationURI, FilesURI, PredictionsURI, Root
from tasks.learning.recipes import Recipe
from tasks.planning.parameters import (
    DownloadParameters,
    IngestParameters,
    PredictParameters,
    PromoteParameters,
    ReportParameters,
    Timeouts,
    TrainParameters,
)
from tasks.planning.user_images import UserImages
from tasks.resources.scaling import Workers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, as `make_plan` found storage; the same request gives the same URIs."""

    root: Root
    recipe: Recipe
    workers: Workers
    """Training workers as requested; None: chosen by GPUs, batch size and nodes (`scaling.resolve`); 0: no Ray."""
    needs_ray: bool
    """Whether a stage that runs on Ray has no committed result, including predictions of the rival."""
    registered_model: str
    """Registered model to compete for."""
    register_as: str | None
    """The registered model that the user named; None: the default one of the data."""

    user_images: UserImages | None
    """The user's images; None for a source's files and for an existing raw dataset."""
    data: URI | None
    """URI from `--data`; None if the recipe's source is downloaded."""
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
    weights: FilesURI | None
    """File of initial weights, published or the user's own; with neither, training begins with random ones."""
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
