"""What passes between a job and whoever submits it: its spec, a JSON file in storage, and marked lines in its log."""

import abc
import dataclasses
import platform
import shutil
import tempfile
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, field_validator

from storage import manifest
from storage.uri import URI, CheckpointURI, DatasetURI, PredictionsURI
from tasks.jobs.scale import ANY, Needs, Workers
from tasks.learning.recipes import Recipe

JOB_NAME = "PIPELINE_JOB"
"""Environment variable in which a job finds its own name."""
SOURCES = "sources"
"""How the table in a raw dataset is called, before its digest, that says from which file each row came."""
PROGRESS = "::progress "
"""Starts a line of a job's log that holds progress as JSON: what, done, total, note, fraction, epoch."""
EPOCHS = "epochs"
"""What progress that tells of a whole epoch is of: each of its lines is shown."""
RANK = "::rank "
"""Starts the line of a job's log in which a training worker tells its rank as JSON."""
IMAGES = "::images "
"""Starts the line of a job's log that says as JSON where the first training images lie: uri, file."""
ERROR = "::error "
"""Starts a line of a job's log that holds the error that ended it as JSON: type, message, permanent."""
ENDED = "::ended"
"""The line of a job's log that says that its work is over, done or not; a job that is killed does not get so far."""

NODES = "::nodes "
"""Starts the line of a job's log that holds what every node says of itself as JSON: a list of `Node`."""
ASKED = "asked"
"""The file that whoever asks the nodes leaves in the folder of the probe."""


class JobSpec(BaseModel, abc.ABC):
    """What every job is told."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    storage: str
    """Storage root, where the lease on the target lies."""
    deadline_s: float
    """Seconds after which the job ends itself."""
    threads: int | None = None
    """Threads of each process that computes; none: as many as Ray gives it CPUs."""

    @property
    @abc.abstractmethod
    def target(self) -> URI:
        """What the job commits."""


class SourceEntry(BaseModel):
    """One file of a person's own data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: str
    """`train` or `test`."""
    label: int | None
    """Number of its class; none for Parquet, whose rows have labels."""
    path: str
    """Relative to the data's URI."""
    size: int
    """Bytes."""
    digest: str
    """`sha256:` or `etag:` and what was found when it was listed."""


class IngestSpec(JobSpec):
    """Make a raw dataset of downloaded files, or of a person's own images."""

    data: str
    """URI that the files lie below."""
    kind: Literal["files", "images", "parquet"]
    """`files`: of a data set, downloaded; else a person's own, an image each or Parquet."""
    data_set: str | None = None
    """The data set that the files are of, as a recipe calls it; none for a person's own."""
    classes: list[str] = []
    """By label, of a person's own images; Parquet says itself, and so does a data set."""
    digest: str = ""
    """SHA-256 of the list of a person's own files."""
    parameters: dict[str, Any]
    """Name of the data set; of a person's own also image_size and channels."""
    scratch: str
    """URI of the folder where attempts keep what they need."""
    raw: str

    @property
    def listing(self) -> URI:
        """A JSON list with a `SourceEntry` for each of a person's own files."""
        return URI(self.scratch).child("listing.json")

    @property
    def source(self) -> URI:
        """Where the files lie."""
        return URI(self.data)

    @property
    def target(self) -> DatasetURI:
        """The raw dataset to commit."""
        return DatasetURI(self.raw)


class PreprocessSpec(JobSpec):
    """Check, split and shuffle a raw dataset."""

    raw: str
    prepared: str
    parameters: dict[str, Any]
    """Seed, validation_fraction, max_quarantined."""

    @property
    def source(self) -> DatasetURI:
        """The raw dataset."""
        return DatasetURI(self.raw)

    @property
    def target(self) -> DatasetURI:
        """The prepared dataset to commit."""
        return DatasetURI(self.prepared)


class TrainSpec(JobSpec):
    """Train a recipe on a prepared dataset."""

    prepared: str
    checkpoint: str
    runs: str
    """Scratch: the folder of all attempts at this training."""
    initial: str | None = None
    """The checkpoint whose weights it begins with; none: weights drawn anew."""
    recipe: dict[str, Any]
    parameters: dict[str, Any]
    """What decides the weights, as hashed in the fingerprint."""
    workers: Workers
    """As asked."""
    stall_s: float = 600.0
    """Seconds without progress after which a worker is started again."""

    @field_validator("recipe")
    @classmethod
    def _complete(cls, value: dict[str, Any]) -> dict[str, Any]:
        return dataclasses.asdict(Recipe(**value))

    @property
    def source(self) -> DatasetURI:
        """The prepared dataset."""
        return DatasetURI(self.prepared)

    @property
    def target(self) -> CheckpointURI:
        """The checkpoint to commit."""
        return CheckpointURI(self.checkpoint)

    @property
    def beginning(self) -> CheckpointURI | None:
        """The checkpoint whose weights it begins with, if any."""
        return CheckpointURI(self.initial) if self.initial else None

    @property
    def needs(self) -> Needs:
        """What each worker is asked to have."""
        return Needs(accelerator_type=self.recipe["accelerator_type"], cpus=self.recipe["cpus_per_worker"])

    @property
    def scratch(self) -> URI:
        """The folder of all attempts."""
        return URI(self.runs)


class PredictSpec(JobSpec):
    """Predict every row of a dataset, or of one split of it."""

    checkpoint: str
    dataset: str
    predictions: str
    split: str | None
    """None: every split."""
    workers: Workers
    """As asked."""
    needs: Needs = ANY
    """What each worker is asked to have."""

    @property
    def model(self) -> CheckpointURI:
        """The model to predict with."""
        return CheckpointURI(self.checkpoint)

    @property
    def source(self) -> DatasetURI:
        """The rows to predict."""
        return DatasetURI(self.dataset)

    @property
    def target(self) -> PredictionsURI:
        """The predictions to commit."""
        return PredictionsURI(self.predictions)


class Node(BaseModel):
    """What one node of a cluster says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Address and the first digits of its id: on one machine there may be several."""
    probe: str
    """Name of the file that it leaves in the folder of the probe."""
    python: str = ""
    """Major and minor version."""
    ray: str | None = None
    torch: str | None = None
    """None: not installed."""
    free: int = 0
    """Bytes, where Ray keeps its own files."""
    sees_storage: bool = True
    """Whether it found what whoever asks had left."""
    trouble: str | None = None
    """Why it cannot work, where that is known."""

    @classmethod
    def here(cls, **about: Any) -> Self:
        """The node that this process runs on; builds of a library for CPU and GPU have the same version."""
        ray, torch = ((manifest.producer()[name] or "").partition("+")[0] or None for name in ("ray", "torch"))
        python = ".".join(platform.python_version_tuple()[:2])
        free = shutil.disk_usage(tempfile.gettempdir()).free
        return cls(python=python, ray=ray, torch=torch, free=free, **about)
