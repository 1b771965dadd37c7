"""What each kind of result records about itself in its manifest's `statistics`, one frozen class for each kind."""

import dataclasses
from typing import Any, Literal, get_args

import pydantic
from pydantic import BaseModel, ConfigDict

_CONFIG = ConfigDict(extra="forbid", revalidate_instances="always", hide_input_in_errors=True)
PairKind = Literal["across train and test", "across classes", "within a class"]
"""Kind of pairs of near duplicates."""
PAIR_KINDS: tuple[PairKind, ...] = get_args(PairKind)
"""The worst first."""


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, **_CONFIG)


class Statistics(_Document):
    """Statistics of any result; `storage.kinds` has the class of each kind."""


class OfImages(Statistics):
    """Statistics of any result that was made of images."""

    notice: str | None
    """Notice that the images are only a bundled sample; every result made of them repeats it."""


class Origin(_Document):
    """Where images or weights came from: a downloaded file, or the user's files."""

    name: str
    sha256: str
    """SHA-256 of the file, or of the list of the user's files."""
    md5: str = ""
    """Empty if none was published."""
    url: str


class LeftOut(_Document):
    """Files below the user's folder that are not read, for one reason."""

    reason: str
    count: int
    first: tuple[str, ...]
    """Paths of the first few, relative to the folder."""

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.first) else ""
        files = "1 file is" if self.count == 1 else f"{self.count:,} files are"
        return f"{files} left out ({self.reason}): {', '.join(self.first)}{more}"


class Overlap(_Document):
    """Test rows whose image is also in train or validation."""

    count: int
    ids: tuple[int, ...]
    """The first few."""


class Contradictions(_Document):
    """Images in several classes: every model is wrong about some of their rows."""

    count: int
    rows: int
    named: tuple[str, ...]
    """The first few, each with its places and classes."""


class NamedRow(_Document):
    """A row of a raw dataset."""

    source: str
    """Its split."""
    row: int
    """Its number in the split."""
    place: str
    """Its file, or split and id."""
    class_name: str


class Pair(_Document):
    """Two rows with almost the same image."""

    distance: float
    """0: equal details."""
    first: NamedRow
    second: NamedRow


class NearDuplicates(_Document):
    """Pairs of one kind."""

    count: int
    worst: tuple[Pair, ...]
    """The most alike, at most 100."""


class SplitRule(_Document):
    """What decides whether a row is a validation row."""

    split_seed: int
    validation_fraction: float
    group: str
    store: str


class Slice(_Document):
    """Test rows that share one fact, compared with the others of their classes."""

    fact: str
    value: str
    rows: int
    right: int
    accuracy: float
    interval: tuple[float, float]
    """95% interval of the accuracy."""
    others: float | None
    """Accuracy of the other rows; none, as the p-values, if its classes have no others."""
    p_value: float | None
    p_corrected: float | None
    """Corrected for the number of slices."""
    is_worse: bool


class Resolved(_Document):
    """Values to which `auto` was resolved in a training."""

    batch_size: int
    class_weights: str
    """`none` or `balanced`."""
    device: str
    loader: str
    """`embeddings` of a probe."""
    precision: str
    threads: int
    workers: int


class Proof(_Document):
    """Comparison of an exported file with its model over all test rows."""

    rows: int
    largest_difference: float
    """Of a probability."""


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_CONFIG)
class ModelSpec:
    """Everything besides the weights that is needed to rebuild a model."""

    model: str
    """Name of the architecture in `tasks.learning.models`."""
    image_shape: tuple[int, int, int]
    """Height, width, channels."""
    classes: tuple[str, ...]
    """Name of each class, in the order of the logits."""
    mean: tuple[float, ...]
    """Mean of the training rows per channel, in units of 0 to 255."""
    std: tuple[float, ...]
    """Standard deviation of the training rows per channel, in units of 0 to 255."""
    temperature: float = 1.0
    """Probabilities are softmax(logits / temperature)."""
    fine_tuned_temperature: float | None = None
    """Of an ensemble: the temperature of the fine-tuned backbone; the second one ends in a probe. None: only one."""


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_CONFIG)
class EpochMetrics:
    """Metrics of one epoch over all ranks."""

    epoch: int
    """Number of the epoch, from 1."""
    step: int
    """Optimizer steps since the start."""
    train_loss: float
    """Mean over the epoch's rows, label smoothing and class weights included."""
    train_accuracy: float
    """Share of augmented training rows predicted correctly during training; of mixed ones, the class with the largest
    share counts."""
    validation_loss: float
    """Mean cross-entropy over all validation rows, weighted by class as in training: a rare class counts as much there
    as a frequent one, also in the choice of the best epoch."""
    validation_accuracy: float
    """Share of validation rows predicted correctly."""
    learning_rate: float
    """Learning rate at the end of the epoch; of the head, if the backbone has another one."""
    backbone_learning_rate: float
    """Learning rate of the backbone at the end of the epoch; 0: frozen."""
    temperature: float = 1.0
    """Temperature of the probabilities, fitted on validation rows, unweighted; 1: none."""

    # Measured times, the largest over all ranks: they differ even between two bit-identical runs.
    seconds: float = dataclasses.field(default=0.0, compare=False)
    """Seconds from the end of the previous epoch (before its checkpoint) to the end of validation; 0: not measured."""
    train_s: float = dataclasses.field(default=0.0, compare=False)
    """Part of `seconds` spent in training steps."""
    data_wait_s: float = dataclasses.field(default=0.0, compare=False)
    """Part of `seconds` spent waiting for the next training or validation batch."""
    checkpoint_wait_s: float = dataclasses.field(default=0.0, compare=False)
    """Part of `seconds` spent waiting for the checkpoint of the previous epoch."""
    launch: str = dataclasses.field(default="eager", compare=False)
    """How the steps ran: eager, compiled, graph, or compiled graph."""
    gpu_busy: float = dataclasses.field(default=0.0, compare=False)
    """Share of the training's time in which the first rank's GPU computed; 0: not measured."""
    gpu_memory: int = dataclasses.field(default=0, compare=False)
    """Most bytes that the first rank's tensors took on its GPU since the start; 0: not measured."""
    mfu: float = dataclasses.field(default=0.0, compare=False)
    """Share of its GPU's peak in bf16 that the model's arithmetic took; 0: not known."""


class FilesStatistics(Statistics):
    """Statistics of downloaded files."""

    sources: tuple[Origin, ...]
    seconds: float


class Provenance(OfImages):
    """Where the images of a raw dataset came from."""

    sources: tuple[Origin, ...]
    left_out: tuple[LeftOut, ...] = ()
    """Of the user's own files."""
    unreadable: tuple[str, ...] = ()
    """The first of the user's own images that could not be read, each with the reason."""


class RawStatistics(Provenance):
    """Statistics of a raw dataset."""

    labels: str
    """Where the labels of the user's own images were read from, in words; empty for a download."""
    class_counts: dict[str, dict[str, int]]
    """Rows by split and class."""
    seconds: float


class PreparedStatistics(OfImages):
    """Statistics of a prepared dataset."""

    class_counts: dict[str, dict[str, int]]
    """Rows by split and class."""
    mean: tuple[float, ...]
    """Mean of the training rows per channel, in units of 0 to 255."""
    std: tuple[float, ...]
    """Standard deviation of the training rows per channel, in units of 0 to 255."""
    quarantined: dict[str, int]
    """Rows that were left out, by reason."""
    quarantined_files: tuple[str, ...] = ()
    """The first of the user's own files with such rows, each with the reason."""
    split: SplitRule
    test_rows_in_train: Overlap
    images_in_two_classes: Contradictions
    seconds: float


class EmbeddingsStatistics(OfImages):
    """Statistics of embeddings."""

    model: ModelSpec
    """The backbone, and how images are normalized for it."""
    dimensions: int
    computed: int
    """Images that neither an earlier result nor an interrupted attempt had."""
    copied: int
    hardware: tuple[str, ...]
    """Hardware and versions of the computed ones."""
    near_duplicates: dict[PairKind, NearDuplicates] | None = None
    """Among the user's training and test images; None of others, and of too many."""
    seconds: float


class CheckpointStatistics(Statistics):
    """Statistics of a training."""

    best_epoch: int
    """The epoch whose weights were kept."""
    history: tuple[EpochMetrics, ...]
    model: ModelSpec
    temperature: float
    stopped_early: bool
    resolved: Resolved
    recipe: dict[str, Any]
    """The whole recipe, as `Recipe.to_dict` gives it."""
    split: SplitRule
    """Of the prepared dataset."""
    hardware: tuple[str, ...]
    """Hardware and versions of all epochs, in order of first use."""
    is_reproducible: bool
    """Whether doing it again there gives the same bytes."""
    seconds: float
    """Of the last attempt."""


class PredictionsStatistics(OfImages):
    """Statistics of predictions."""

    predicted: dict[str, int]
    """Rows by predicted class."""
    unpredicted: int
    """Rows without an image that could be read."""
    temperature: float
    """Of the model."""
    reused_parts: int
    """Parts that an earlier attempt had written."""
    hardware: tuple[str, ...]
    """Hardware and versions of all parts."""
    is_reproducible: bool
    """Whether doing it again there gives the same bytes."""
    seconds: float


class Scores(Statistics):
    """The metrics that a gate may use."""

    test_accuracy: float
    balanced_accuracy: float
    """Mean recall of the classes."""
    macro_f1: float
    """Mean F1 of the classes."""

    def scores(self) -> dict[str, float]:
        return self.model_dump(include={*Scores.model_fields})


class Metrics(Scores):
    """All metrics on the test rows; one that is added later needs a default, or earlier evaluations cannot be read."""

    test_loss: float
    expected_calibration_error: float
    num_rows: int

    def metrics(self) -> dict[str, float]:
        return self.model_dump(include={*Metrics.model_fields})


class EvaluationStatistics(Metrics, OfImages):
    """Statistics of an evaluation."""

    worse_slices: tuple[Slice, ...] | None = None
    """Slices that are significantly worse, the surest first; none if nothing is known to compare rows by."""


class ReportStatistics(Statistics):
    """What a report's run was, for the table of runs."""

    registered_model: str
    recipe: str
    """Name of the recipe."""
    data: str
    dataset: str
    """Name of the prepared dataset."""
    changes: dict[str, Any]
    """Fields of the recipe that the run changed."""
    settings: dict[str, Any]
    """All fields of the recipe."""
    seconds: float | None
    """Of the run so far; none without a flow."""


class ExportStatistics(Scores, OfImages):
    """Statistics of an export; the metrics are the exported file's."""

    proof: Proof


class AuditStatistics(OfImages):
    """Statistics of an audit."""

    rows: int
    """Images that were looked at."""
