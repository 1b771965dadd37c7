"""Stages: one frozen class each, whose value says which result a stage makes, and so the result's URI, `target`.

The same value is what a task builds from its arguments, what its job reads as JSON, what the fingerprint is taken of,
what the manifest records, and a link of the plan. Limits and needs of the work are no part of it: they change no byte.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from storage import kinds, manifest, reference
from storage.kinds import (
    AuditURI,
    CheckpointURI,
    DatasetURI,
    EmbeddingsURI,
    EvaluationURI,
    ExportURI,
    FilesURI,
    Kind,
    PredictionsURI,
    ReportURI,
    U,
)
from storage.uri import URI, ListingURI, Root, fingerprint
from tasks.learning import sources, user_code
from tasks.learning.recipe import MAX_MEGAPIXELS, Data, Recipe, Split
from tasks.learning.sources import SourceFile


class Stage(BaseModel, Generic[U]):
    """Base of the stages; the roles of `kind.parents` are the fields with the results that a stage reads.

    A field that equals its default is left out of the fingerprint: that value means "as before the field was added".
    A changed default needs a new version of the kind.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    kind: ClassVar[Kind[Any, Any]]
    """Kind of the result."""

    root: Root | None = None
    """Storage root of the result; None: that of the first result that the stage reads."""

    @property
    def name(self) -> str:
        """Readable first part of the result's name: by default that of the first result that the stage reads."""
        return next(iter(self.parents.values())).stem

    @property
    def parents(self) -> dict[str, URI]:
        """Results that the stage reads, by role."""
        return {role: uri for role in self.kind.parents if (uri := getattr(self, role, None))}

    @property
    def values(self) -> dict[str, JsonValue]:
        """Everything else that decides the result's bytes, without what has its default."""
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields if name not in ("root", *self.kind.parents)}
        return {name: _plain(value) for name, value in values.items() if value != fields[name].get_default()}

    @property
    def storage(self) -> Root:
        return self.root or reference.root_of(next(iter(self.parents.values())))

    @property
    def target(self) -> U:
        """URI of the result: the same request has the same URI, before and after it is committed."""
        parents = {role: uri.label for role, uri in self.parents.items()}
        digest = fingerprint(self.kind.stage, version=self.kind.version, parents=parents, values=self.values)
        uri: U = self.kind.place(self.storage, f"{self.name}-{digest}")
        return uri

    @property
    def scratch(self) -> URI:
        """Folder for the job's spec and for temporary files of all attempts; deleted once the result is committed."""
        return self.storage.child(f"{kinds.RUNS}/{self.target.name}")


def _plain(value: Any) -> JsonValue:
    """Return a field's value as JSON; of a group without the fields that have their defaults."""
    if isinstance(value, URI):
        return value.label
    if not dataclasses.is_dataclass(value):
        return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
    fields: Mapping[str, Any] = getattr(value, "__pydantic_fields__")  # noqa: B009 (of pydantic's dataclasses)
    now = {name: getattr(value, name) for name in fields}
    return {name: _plain(now[name]) for name in fields if name == "kind" or now[name] != fields[name].get_default()}


class Download(Stage[FilesURI]):
    """Fetch the files of a source, or initial weights, and keep them as they are."""

    kind = kinds.FILES
    root: Root
    data: str
    """Name of the source or of the weights."""
    files: tuple[SourceFile, ...]
    mirrors: tuple[str, ...] = ()
    """Addresses to fetch them from, tried in this order; they decide nothing."""
    refresh: int = 0
    """Number of the repetition that the user asked for."""

    @classmethod
    def of(cls, source: sources.Download, root: Root, *, mirrors: Sequence[str] = (), refresh: int = 0) -> Self:
        """Return the stage that downloads `source` from `mirrors`, then from those that publish it."""
        return cls(
            root=root, data=source.name, files=source.files, mirrors=(*mirrors, *source.mirrors), refresh=refresh
        )

    @property
    def name(self) -> str:
        return self.data

    @property
    def values(self) -> dict[str, JsonValue]:
        """The checksums decide the bytes, wherever a file comes from."""
        sums: JsonValue = {file.name: file.sha256 for file in self.files}
        return {"sha256": sums} | ({"refresh": self.refresh} if self.refresh else {})


class Ingest(Stage[DatasetURI]):
    """Make a raw dataset of downloaded files, or of the user's own images."""

    kind = kinds.RAW
    files: FilesURI | None = None
    """Downloaded files of a source; None for the user's own."""
    source: str = ""
    """The source as a recipe names it."""
    listing: ListingURI | None = None
    """List of the user's own files, with their splits, labels and checksums."""
    place: URI | None = None
    """Folder with these files; decides nothing."""
    is_new: bool = False
    """True for images that are only predicted: labels may be missing, and the classes are those of a model."""
    image_size: int = 0
    channels: Literal[1, 3] = 3
    store: Literal["pixels", "files"] = "pixels"
    max_megapixels: int = MAX_MEGAPIXELS
    test_fraction: float | None = None
    """Share of the images that become test rows by a hash of their content; None if folders or names define splits."""
    group: Literal["none", "near-duplicates", "folder"] = "none"
    """Which images get one split, where their content decides it."""
    embeddings: EmbeddingsURI | None = None
    """Of the same images without groups: by them near duplicates were found."""
    refresh: int = 0

    @property
    def name(self) -> str:
        return self.made_from.stem

    @property
    def values(self) -> dict[str, JsonValue]:
        """A source decides through its checksums, except the user's own code, which reads the files."""
        undecisive = ["place"] if user_code.is_reference(self.source) else ["place", "source"]
        return {name: value for name, value in super().values.items() if name not in undecisive}

    @property
    def storage(self) -> Root:
        return self.root or (self.listing.root if self.listing else reference.root_of(self.made_from))

    @property
    def data(self) -> Data:
        """How the images are stored, as in a recipe."""
        if not self.listing:
            return Data(source=self.source)
        fields = {name: getattr(self, name) for name in ("image_size", "channels", "store", "max_megapixels")}
        return Data(source=sources.USER_IMAGES, **fields)

    @property
    def made_from(self) -> FilesURI | ListingURI:
        made_from = self.files or self.listing
        assert made_from, "either files or a listing"
        return made_from


class Preprocess(Stage[DatasetURI]):
    """Check, split and shuffle a raw dataset."""

    kind = kinds.PREPARED
    raw: DatasetURI
    split: Split = Split()
    embeddings: EmbeddingsURI | None = None
    """Of the same images: by them near duplicates were found, which get one split."""
    refresh: int = 0
    """Number of the repetition, if the raw dataset is not made again."""


class _FromWeights(Stage[U]):
    """Stage that begins with a model, or with random weights."""

    start: URI | None = None
    """Initial weights: a downloaded file of them, or a checkpoint; None: random ones."""

    @property
    def initial(self) -> CheckpointURI | None:
        """The model whose weights it begins with."""
        return CheckpointURI(self.start) if self.start and kinds.CHECKPOINT.holds(self.start) else None

    @property
    def weights(self) -> FilesURI | None:
        """The downloaded file of weights that it begins with."""
        return FilesURI(self.start) if self.start and not kinds.CHECKPOINT.holds(self.start) else None

    @property
    def values(self) -> dict[str, JsonValue]:
        return {name: value for name, value in super().values.items() if name != "start"}


class Embed(_FromWeights[EmbeddingsURI]):
    """Compute what a backbone says about each image of a dataset, prepared or raw."""

    kind = kinds.EMBEDDINGS
    prepared: DatasetURI | None = None
    raw: DatasetURI | None = None
    """The images, if they are not prepared, such as new ones."""
    model: str
    """The architecture, as in a recipe."""

    @property
    def dataset(self) -> DatasetURI:
        dataset = self.prepared or self.raw
        assert dataset, "either prepared or raw"
        return dataset


class Train(_FromWeights[CheckpointURI]):
    """Train a recipe on a prepared dataset."""

    kind = kinds.CHECKPOINT
    prepared: DatasetURI
    recipe: Recipe
    """Its model and its training decide the weights; the split is already in `prepared`."""
    embeddings: EmbeddingsURI | None = None
    """Of the images, by the initial weights: what a probe, alone or in an ensemble, is fitted to."""
    workers: int | None = Field(default=None, ge=0)
    """Number of workers as requested; None: chosen by GPUs, batch size and nodes; 0: one, without Ray."""
    cores: int | None = None
    """Number of the machine's cores as requested: threads change the order of summation; None: all."""

    @property
    def name(self) -> str:
        """The recipe's name; after that of the data, if they are the user's own images."""
        is_user_images = self.recipe.data.source == sources.USER_IMAGES
        return f"{self.prepared.stem}-{self.recipe.name}" if is_user_images else self.recipe.name

    @property
    def values(self) -> dict[str, JsonValue]:
        training = _plain(self.recipe.training)
        assert isinstance(training, dict)
        if training["kind"] == "finetune":
            del training["kind"]  # before there were probes
        start: dict[str, JsonValue] = {"start": self.recipe.training.start.kind} if "start" in training else {}
        of_no_probe = ["workers", "cores"] if training.get("kind") == "probe" else []
        rest = {name: value for name, value in super().values.items() if name not in ("recipe", *of_no_probe)}
        return {"model": self.recipe.model, "training": training | start, **rest}


class Predict(Stage[PredictionsURI]):
    """Predict every row of a dataset, or of one of its splits."""

    kind = kinds.PREDICTIONS
    checkpoint: CheckpointURI
    dataset: DatasetURI
    split: str | None = None
    """Split to predict; None: every split."""
    embeddings: EmbeddingsURI | None = None
    """Of the model's own images, by its own backbone: rows get their distance to the nearest; None: no distance."""

    @classmethod
    def of(
        cls, checkpoint: CheckpointURI, dataset: DatasetURI, *, split: str | None = None, root: Root | None = None
    ) -> Self:
        """Return the stage that predicts by a trained model, with distances if its images have embeddings."""
        trained, embeddings = manifest.find(checkpoint), None
        if trained and "embeddings" in trained.parents:
            embeddings = EmbeddingsURI(trained.parent("embeddings", of=checkpoint))
        elif trained and "prepared" in trained.parents:
            prepared = DatasetURI(trained.parent("prepared", of=checkpoint))
            model = trained.statistics_of(kinds.CHECKPOINT).model.model
            embeddings = Embed(prepared=prepared, model=model, start=checkpoint).target
        if embeddings and not manifest.is_committed(embeddings):
            embeddings = None
        return cls(root=root, checkpoint=checkpoint, dataset=dataset, split=split, embeddings=embeddings)


class Evaluate(Stage[EvaluationURI]):
    """Compute the metrics of predictions on the test rows."""

    kind = kinds.EVALUATION
    predictions: PredictionsURI


class Report(Stage[ReportURI]):
    """Write the page of a run."""

    kind = kinds.REPORT
    checkpoint: CheckpointURI
    predictions: PredictionsURI
    evaluation: EvaluationURI
    decision: dict[str, JsonValue]
    """The decision as the registry records it, without time, author and weights."""
    register_as: str | None = None
    """Registered model that the user named; None: the default one of the data."""


class Export(Stage[ExportURI]):
    """Export a model, proven on the test rows of its own data."""

    kind = kinds.EXPORT
    checkpoint: CheckpointURI
    prepared: DatasetURI


class Audit(Stage[AuditURI]):
    """Find images whose labels are probably wrong, by probes on the embeddings of other images."""

    kind = kinds.AUDIT
    embeddings: EmbeddingsURI
