"""The plan of a run: every URI it will produce, computed from fingerprints before anything is done."""

import dataclasses
import os
from functools import cached_property
from typing import Any

from storage import files, manifest, registry
from storage.admin.catalog import check_links
from storage.fingerprint import fingerprint
from storage.uri import URI, CheckpointURI, DatasetURI, EvaluationURI, FilesURI, PredictionsURI, Root, parse_root
from tasks import champions, own
from tasks.given import check_shift, given
from tasks.jobs.scale import Needs, Workers, limits
from tasks.learning import code, datasets
from tasks.learning.recipes import Recipe
from tasks.own import Own

# "download" is the raw dataset's, which that stage once wrote: its name stands in every fingerprint of one.
VERSIONS = {"files": 1, "download": 1, "preprocess": 1, "train": 1, "predict": 1, "evaluate": 1, "report": 3}
"""Raised by one when a change of a stage changes its bytes: old results stay, new ones get other URIs."""

_YEAR = 365 * 24 * 60
"""In minutes; the timers of Python, torch and Ray take no number of any size."""

_LITTLE_BYTES = 2**28
"""Files up to so many bytes in all are ingested sooner than a Ray job has started."""

_PREPROCESS_FIELDS = ("seed", "validation_fraction", "max_quarantined")
_LATER_FIELDS = {"flip": "none", "initialize": "random", "accumulation": 1}
"""Fields that recipes did not always have: at these values they change nothing, fingerprints included."""
_OWN_FIELDS = ("image_size", "channels")
_SCALE_FIELDS = ("accelerator_type", "cpus_per_worker", "prefetch_batches")
_NOT_TRAINING_FIELDS = (
    *("name", "data", "fallback", "origin", "accuracy_floor", "margin"),
    *_OWN_FIELDS,
    *_SCALE_FIELDS,
    *_PREPROCESS_FIELDS[1:],
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is asked for, and where each of its results lies; the same request gives the same URIs."""

    root: Root
    """Storage root."""
    recipe: Recipe
    """Complete and checked."""
    workers: Workers = None
    """Training workers as asked; none: as many as the cluster has GPUs, else one; 0: this process, without Ray."""
    data: DatasetURI | None = None
    """A raw dataset that is there already, in place of the recipe's download."""
    own: Own | None = None
    """A person's own images, in place of the recipe's download."""
    initial: CheckpointURI | None = None
    """The champion whose weights training begins with; none: weights drawn anew."""
    refresh: int = 0
    """Which repetition of the same work this is; 0 the first."""
    deadline_s: float = 24 * 3600.0
    """Seconds after which a Ray job is ended."""
    stall_s: float = 600.0
    """Seconds without progress after which a training worker is started again."""
    patience_s: float = 0.0
    """Seconds for which mirrors are tried again while none can be reached."""

    @cached_property
    def data_set(self) -> datasets.DataSet:
        """Where the recipe's data comes from."""
        return datasets.load(self.recipe.data)

    @cached_property
    def data_name(self) -> str:
        """What the championship is called: the data set's name, or that of a person's own data."""
        if self.own is not None:
            return self.own.name
        if self.data is not None and self.recipe.data == datasets.OWN:
            return str(manifest.load(self.data).parameters["data"])
        return datasets.name_of(self.recipe.data)

    @property
    def given(self) -> URI | None:
        """What `--data` named, none when the recipe's data set is downloaded."""
        return self.own.uri if self.own else self.data

    @cached_property
    def files(self) -> FilesURI | None:
        """The data set's files as their mirror served them; none for what `--data` named."""
        if self.given is not None:
            return None
        sums = {file.name: file.sha256 for file in self.data_set.files}
        digest = self._fingerprint("files", [], {"data": self.data_name, "sha256": sums, "refresh": self.refresh})
        return FilesURI(self.root.child(f"downloads/{self.data_name}-{digest}"))

    @cached_property
    def raw(self) -> DatasetURI:
        """The images as they came, in Parquet."""
        if self.data is not None:
            return self.data
        if self.own is not None:
            made_from = {**self.own_parameters, "files": self.own.digest, "ingest": own.VERSION}
            digest = self._fingerprint("download", [], made_from | {"refresh": self.refresh})
            return DatasetURI(self.root.child(f"datasets/raw/{self.own.name}-{digest}"))
        sums = {file.name: file.sha256 for file in self.data_set.files}
        made_from = {"data": self.data_name, "sha256": sums, "refresh": self.refresh}
        if code.is_reference(self.recipe.data):  # how a person's own file reads them
            made_from["code"] = self.recipe.data
        digest = self._fingerprint("download", [], made_from)
        return DatasetURI(self.root.child(f"datasets/raw/{self.data_name}-{digest}"))

    @cached_property
    def prepared(self) -> DatasetURI:
        """The images checked, split and shuffled."""
        digest = self._fingerprint("preprocess", [self.raw], self.preprocess_parameters)
        return DatasetURI(self.root.child(f"datasets/prepared/{self.recipe.name}-{digest}"))

    @cached_property
    def checkpoint(self) -> CheckpointURI:
        """The best epoch's model."""
        digest = self._fingerprint("train", [self.prepared], self.train_parameters)
        return CheckpointURI(self.root.child(f"checkpoints/{self.recipe.name}-{digest}"))

    @cached_property
    def predictions(self) -> PredictionsURI:
        """The model's predictions on the test rows."""
        return self.predictions_of(self.checkpoint)

    @cached_property
    def evaluation(self) -> EvaluationURI:
        """The model's metrics on the test rows."""
        return evaluation_of(self.root, self.predictions)

    @property
    def preprocess_parameters(self) -> dict[str, Any]:
        """What decides the prepared dataset beside the raw one."""
        return {name: getattr(self.recipe, name) for name in _PREPROCESS_FIELDS}

    @property
    def own_parameters(self) -> dict[str, Any]:
        """What decides the raw dataset of a person's own images beside their files."""
        return {"data": self.data_name} | {name: getattr(self.recipe, name) for name in _OWN_FIELDS}

    @property
    def train_parameters(self) -> dict[str, Any]:
        """What decides the weights beside the prepared dataset."""
        fields = {name: value for name, value in self.recipe.to_dict().items() if name not in _NOT_TRAINING_FIELDS}
        fields = {name: value for name, value in fields.items() if _LATER_FIELDS.get(name) != value}
        if self.initial is not None:
            fields["initialize"] = self.initial.fingerprint
        return fields | {"workers": "auto" if self.workers is None else self.workers}

    @property
    def needs(self) -> Needs:
        """What each worker is asked to have."""
        return needs_of(self.recipe)

    @property
    def gate(self) -> dict[str, float]:
        """What the decision to promote depends on beside the metrics."""
        return {"accuracy_floor": self.recipe.accuracy_floor, "margin": self.recipe.margin}

    def scratch(self, target: URI) -> URI:
        """Where attempts at `target` keep what they need; removed once it is committed."""
        return scratch_of(self.root, target)

    def predictions_of(self, checkpoint: CheckpointURI) -> PredictionsURI:
        """Where the predictions of any `checkpoint` on this plan's test rows lie."""
        return predictions_of(self.root, checkpoint, self.prepared, split="test")

    def needs_ray(self) -> bool:
        """Whether a stage that runs on Ray has no committed result yet, the champion's predictions included."""
        uris: list[URI] = [self.prepared, self.checkpoint, self.predictions]
        uris += [self.raw] if self.ingest_on_ray() else []
        champion = registry.champion(self.root, self.data_name)
        if champion is not None:
            uris.append(self.predictions_of(champion))
        return not all(is_committed(uri) for uri in uris)

    def ingest_on_ray(self) -> bool:
        """Whether a Ray job pays for what is to be ingested: there is much, in pieces that can be spread over nodes."""
        if self.own is not None:
            sizes = [file.size for file in self.own.files]
            return len(sizes) > 1 and sum(sizes) > _LITTLE_BYTES
        if self.files is None or len({file.shard for file in self.data_set.files}) <= 1 or is_committed(self.raw):
            return False
        try:
            listed = manifest.load(self.files).files
        except FileNotFoundError:  # how much it will be, nobody knows yet
            return True
        return sum(file.size for file in listed) > _LITTLE_BYTES

    def _fingerprint(self, stage: str, parents: list[URI], parameters: dict[str, Any]) -> str:
        return fingerprint(
            stage, version=VERSIONS[stage], parents=[uri.fingerprint for uri in parents], parameters=parameters
        )


def make(
    *,
    storage: str,
    recipe: Recipe,
    workers: Workers = None,
    data: str | None = None,
    refresh: bool = False,
    deadline_minutes: float = 24 * 60,
    stall_minutes: float = 10,
    patience_minutes: float = 0,
) -> Plan:
    """The checked plan of one run.

    Raises `ValueError` naming what is wrong: a storage that cannot be written, a number that is out of range, a
    dataset that is not there or not the recipe's.
    """
    check_numbers(
        workers=workers,
        deadline_minutes=deadline_minutes,
        stall_minutes=stall_minutes,
        patience_minutes=patience_minutes,
    )
    root = check_root(storage)
    if not data:
        check_shift(recipe, side=min(datasets.load(recipe.data).image_shape[:2]))
    found = given(data, recipe) if data else None
    if isinstance(found, Own) and root.lies_in(found.uri):
        raise ValueError(f"--storage must not lie below --data, whose files it would add to: got {root} in {found.uri}")
    plan = Plan(
        root=root,
        recipe=recipe,
        workers=workers,
        data=found if isinstance(found, DatasetURI) else None,
        own=found if isinstance(found, Own) else None,
        deadline_s=deadline_minutes * 60,
        stall_s=stall_minutes * 60,
        patience_s=patience_minutes * 60,
    )
    if recipe.initialize == "champion":
        plan = dataclasses.replace(plan, initial=champions.to_begin_with(plan))
    return refreshed(plan) if refresh else plan


def check_root(storage: str) -> Root:
    """The storage root that a person named, once files can be created there; raises `ValueError` naming `--storage`."""
    root = parse_root(storage)
    files.check_writable(root)
    check_links(root)
    return root


def default_storage() -> str:
    """Where results lie unless a run is told otherwise."""
    return os.environ.get("PIPELINE_STORAGE") or "./data"


def check_numbers(
    *, workers: Workers, deadline_minutes: float, stall_minutes: float = 10, patience_minutes: float = 0
) -> None:
    """Raise `ValueError` naming the option and the value that is out of range."""
    if isinstance(workers, str) and limits(workers) is None:
        raise ValueError(f"--workers must be a whole number or MIN:MAX, got {workers!r}")
    if isinstance(workers, int) and workers < 0:
        raise ValueError(f"--workers must be >= 0 (0 is without Ray), got {workers}")
    for option, minutes in (("--deadline", deadline_minutes), ("--stall", stall_minutes)):
        if not 0 < minutes <= _YEAR:
            raise ValueError(f"{option} must be > 0 and at most {_YEAR} minutes, a year, got {minutes}")
    if not 0 <= patience_minutes <= _YEAR:
        raise ValueError(f"--patience must be >= 0 and at most {_YEAR} minutes, a year, got {patience_minutes}")


def needs_of(recipe: Recipe) -> Needs:
    """What each worker is asked to have."""
    return Needs(accelerator_type=recipe.accelerator_type, cpus=recipe.cpus_per_worker)


def scratch_of(root: Root, target: URI) -> URI:
    """Where attempts at `target` keep what they need."""
    return root.child(f"runs/{target.name}")


def predictions_of(root: Root, checkpoint: CheckpointURI, dataset: DatasetURI, *, split: str | None) -> PredictionsURI:
    """Where the predictions of `checkpoint` on one split (none: on all rows) of `dataset` lie."""
    digest = fingerprint(
        "predict",
        version=VERSIONS["predict"],
        parents=[checkpoint.fingerprint, dataset.fingerprint],
        parameters={"split": split},
    )
    return PredictionsURI(root.child(f"predictions/{checkpoint.name.rpartition('-')[0]}-{digest}"))


def evaluation_of(root: Root, predictions: PredictionsURI) -> EvaluationURI:
    """Where the evaluation of `predictions` lies."""
    digest = fingerprint("evaluate", version=VERSIONS["evaluate"], parents=[predictions.fingerprint], parameters={})
    return EvaluationURI(root.child(f"evaluations/{predictions.name.rpartition('-')[0]}-{digest}"))


def is_committed(uri: URI) -> bool:
    """Whether `uri` has a manifest."""
    return files.exists(uri.child(manifest.NAME))


def refreshed(plan: Plan) -> Plan:
    """`plan` as the next repetition: the first one whose evaluation is not committed yet.

    A repetition that was cut off is thereby gone on with, and a finished one is followed by a new one.
    """
    refresh = 1
    while is_committed(dataclasses.replace(plan, refresh=refresh).evaluation):
        refresh += 1
    return dataclasses.replace(plan, refresh=refresh)
