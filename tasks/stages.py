"""What a job is asked to do: its spec, a JSON file in storage."""

import hashlib
import re
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from storage import files
from storage.manifest import Damaged
from storage.statistics import LeftOut
from storage.uri import URI, CheckpointURI, DatasetURI, FilesURI, PredictionsURI, Root
from tasks.learning.recipes import Recipe
from tasks.resources.scaling import ANY, Needs, Workers

NEW = "new"
"""Split of images that are only predicted, without a part in training."""

_DIGESTED = re.compile(r".+-([0-9a-f]{64})\.json")


def write_digested(folder: URI, name: str, content: bytes) -> URI:
    """Write `content` for a job, in a file whose name ends with its SHA-256; return its URI."""
    place = folder.child(f"{name}-{hashlib.sha256(content).hexdigest()}.json")
    files.put(place, content)
    return place


def read_digested(place: URI) -> bytes:
    """Read a file of `write_digested`; raise `Damaged` if its content has another SHA-256 than its name says.

    Scratch is storage: whoever can write there must not decide what a job does, or where. A name without a SHA-256,
    of a file that somebody wrote by hand, says nothing.
    """
    content = files.read(place)
    named = _DIGESTED.fullmatch(place.name)
    if named and named[1] != hashlib.sha256(content).hexdigest():
        raise Damaged(f"{place} is not what the run wrote (SHA-256), so the job did nothing; run again")
    return content


def scratch_of(root: Root, target: URI) -> URI:
    """Return the folder for temporary files of attempts at `target`; it is deleted once `target` is committed."""
    return root.child(f"runs/{target.name}")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class JobSpec(_Frozen):
    """Base of every job's spec."""

    storage: Root
    """Storage root of the target."""
    target: URI
    """Result that the job commits."""
    deadline_s: float
    """Seconds after which the job ends itself with an error."""
    stall_s: float = 600.0
    """Seconds without progress after which a training worker is restarted, or the wait for a cluster's nodes ends."""
    threads: int | None = None
    """Threads of each computing process; None: as many as Ray gives it CPUs."""

    @property
    def scratch(self) -> URI:
        """Folder for the spec and for temporary files of all attempts."""
        return scratch_of(self.storage, self.target)


class UserFile(NamedTuple):
    """One of the user's own files; there may be a million of them."""

    split: str
    """`train` or `test`; empty if the job chooses by the file's content."""
    label: int | None
    """Number of its class; None for Parquet, whose rows have labels."""
    path: str
    """Path relative to the data's URI."""
    size: int
    """Size in bytes."""
    digest: str
    """`sha256:` or `etag:` and the value at the time of listing."""


class IngestSpec(JobSpec):
    """Make a raw dataset of downloaded files, or of the user's own images."""

    source: URI
    """Folder with the files."""
    target: DatasetURI
    kind: Literal["files", "images", "parquet"]
    """`files`: downloaded files of a source; else the user's own, `images` (one file each) or `parquet`."""
    source_name: str | None = None
    """Name of the downloaded source, as in a recipe; None for the user's own files."""
    classes: list[str] = []
    """Name of each label for image files; empty for Parquet and sources, which name their classes themselves."""
    labels: str = ""
    """Which folders are the classes of image files, in words."""
    digest: str = ""
    """SHA-256 of the list of the user's own files."""
    listing: URI | None = None
    """JSON list with a `UserFile` for each of the user's own files, from `write_digested`."""
    left_out: tuple[LeftOut, ...] = ()
    """Files below the user's data that are not read, by reason, for the manifest."""
    parameters: dict[str, Any]
    """Name of the source. For the user's own also image_size, channels and, if no folder is called train or test,
    test_fraction, and group if near duplicates get one split; for images that are only predicted also classes."""

    @property
    def is_new(self) -> bool:
        """True for images that are only predicted: `classes` are the model's, and labels may be missing."""
        return "classes" in self.parameters


class PreprocessSpec(JobSpec):
    """Check, split and shuffle a raw dataset."""

    source: DatasetURI
    target: DatasetURI
    parameters: dict[str, Any]
    """Values of split_seed, validation_fraction and max_quarantined; group if it is not none; for an audit also fold,
    from 0, and folds."""


class TrainParameters(_Frozen):
    """Parameters of the task `train`."""

    recipe: Recipe
    parameters: dict[str, Any]
    """Values that determine the weights besides the prepared dataset and the initial weights."""
    initial: CheckpointURI | None = None
    """Warm start: the champion whose weights training begins with."""
    weights: FilesURI | None = None
    """File of initial weights, published or the user's own; with neither, training begins with random ones."""
    workers: Workers
    """Workers as requested; None: chosen by GPUs, batch size and nodes (`scaling.resolve`); 0: no Ray."""


class TrainSpec(JobSpec, TrainParameters):
    """Train a recipe on a prepared dataset."""

    source: DatasetURI
    target: CheckpointURI


class PredictParameters(_Frozen):
    """Parameters of the task `predict`."""

    split: str | None
    """Split to predict; None: every split."""
    workers: Workers
    """Number of workers as requested."""
    needs: Needs = ANY
    """Resources that each worker requires."""


class PredictSpec(JobSpec, PredictParameters):
    """Predict every row of a dataset, or of one of its splits."""

    model: CheckpointURI
    source: DatasetURI
    target: PredictionsURI
