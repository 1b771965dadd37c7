"""Plan of a run: the URI of every result, computed from fingerprints before any work starts."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from storage import champions, kinds, manifest, registry
from storage.kinds import Kind, U
from storage.uri import URI, CheckpointURI, DatasetURI, EvaluationURI, FilesURI, PredictionsURI, Root
from tasks.jobs.deadline import deadline
from tasks.learning import recipes, sources, user_code
from tasks.learning.recipes import Recipe
from tasks.planning import user_images
from tasks.planning.result_uris import evaluation_of, predictions_of, result_uri
from tasks.planning.user_images import UserImages
from tasks.promotion import gate
from tasks.resources.scaling import Needs, Workers, needs_of

_CHAIN = ("prepared", "checkpoint", "predictions", "evaluation")
"""Kinds whose URIs change with the bytes of their parents; each comes after those that it depends on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The request of a run and the URIs of its results; the same request gives the same URIs."""

    root: Root
    recipe: Recipe
    workers: Workers = None
    """Training workers as requested; None: chosen by GPUs, batch size and nodes (`scaling.resolve`); 0: no Ray."""
    cores: int = 0
    """Requested number of this machine's cores; 0: all."""
    data: DatasetURI | None = None
    """An existing raw dataset, instead of the recipe's download."""
    user_images: UserImages | None = None
    """The user's own images, instead of the recipe's download."""
    register_as: str | None = None
    """The registered model that the user named; None: the default one of the data."""
    judge_only: bool = False
    """Whether to record the decision but keep the champion."""
    initial: CheckpointURI | None = None
    """Warm start: the champion whose weights training begins with; None: random weights."""
    refresh: int = 0
    """Number of this repetition (`--refresh`); 0: the first run."""
    stage_timeout_s: float = 24 * 3600.0
    """Seconds after which a stage is aborted."""
    stall_timeout_s: float = 600.0
    """Seconds without progress after which a training worker is restarted."""
    mirrors: tuple[str, ...] = ()
    """Addresses of mirrors to try before the data set's own."""
    download_timeout_s: float = 0.0
    """Seconds for which to retry if no mirror can be reached."""

    @functools.cached_property
    def source(self) -> sources.Source:
        """The recipe's data set: its files, mirrors and image shape."""
        return sources.load(self.recipe.data.source)

    @functools.cached_property
    def data_name(self) -> str:
        """Name of the data set, or of the folder with the user's own data."""
        if self.user_images is not None:
            return self.user_images.name
        if self.data is not None and self.is_user_images:
            return str(manifest.load(self.data).parameters["data"])
        return sources.name_of(self.recipe.data.source)

    @functools.cached_property
    def registered_model(self) -> str:
        """The registered model to compete for: the named one, else the default one of the data."""
        if self.register_as is not None:
            return self.register_as
        if self.user_images is not None:
            return champions.default_for_user_images(self.user_images.name, self.user_images.uri)
        if self.data is not None and self.is_user_images:
            return champions.default_of_raw(manifest.load(self.data))
        return self.data_name

    @property
    def is_user_images(self) -> bool:
        """Whether the run trains on the user's own data."""
        return self.user_images is not None or (
            self.data is not None and self.recipe.data.source == sources.USER_IMAGES
        )

    @property
    def model_name(self) -> str:
        """Name, before the fingerprint, of the checkpoint and of the results made with it.

        The recipe's name; for the user's own data with the registered model, because all such data share a recipe.
        """
        return f"{self.registered_model}-{self.recipe.name}" if self.is_user_images else self.recipe.name

    @property
    def source_uri(self) -> URI | None:
        """URI from `--data`; None if the recipe's data set is downloaded."""
        return self.user_images.uri if self.user_images else self.data

    @functools.cached_property
    def files(self) -> FilesURI | None:
        """The data set's unchanged files; None with `--data`."""
        if self.source_uri is not None:
            return None
        return self._source(kinds.FILES, self._download_parameters)

    @functools.cached_property
    def raw(self) -> DatasetURI:
        """The raw dataset: the images in Parquet, not yet checked."""
        if self.data is not None:
            return self.data
        if self.user_images is not None:
            made_from = {**self.user_images_parameters, "files": self.user_images.digest}
        else:
            made_from = self._download_parameters
            if user_code.is_reference(self.recipe.data.source):  # the user's own code reads the files
                made_from["code"] = self.recipe.data.source
        return self._source(kinds.RAW, made_from)

    @property
    def prepared(self) -> DatasetURI:
        """The prepared dataset: checked, split and shuffled; named after the raw one, so that recipes share it."""
        # A dataset named by `--data` is not made again: its repetition starts with preprocessing.
        repeated = {"refresh": self.refresh} if self.data is not None and self.refresh else {}
        parameters, name = self.preprocess_parameters | repeated, self.raw.name.rpartition("-")[0]
        return self._place(kinds.PREPARED, [self.raw], name=name, parameters=parameters)

    @property
    def checkpoint(self) -> CheckpointURI:
        """The model of the best epoch."""
        how = {"name": self.model_name, "parameters": self.train_parameters}
        beside = [self.initial] if self.initial else []
        return self._place(kinds.CHECKPOINT, [self.prepared], beside=beside, **how)

    @property
    def predictions(self) -> PredictionsURI:
        """The model's predictions on the test rows."""
        parents = [self.checkpoint, self.prepared]
        return self._once(kinds.PREDICTIONS, parents, lambda: self.predictions_of(self.checkpoint))

    @property
    def evaluation(self) -> EvaluationURI:
        """The model's metrics on the test rows."""
        return self._once(kinds.EVALUATION, [self.predictions], lambda: evaluation_of(self.root, self.predictions))

    @property
    def _download_parameters(self) -> dict[str, Any]:
        return {"data": self.data_name, "sha256": {file.name: file.sha256 for file in self.source.files}}

    @property
    def preprocess_parameters(self) -> dict[str, Any]:
        """Parameters that determine the prepared dataset besides the raw one."""
        return recipes.preprocess_parameters(self.recipe)

    @property
    def user_images_parameters(self) -> dict[str, Any]:
        """Parameters that determine the raw dataset of the user's own images besides their files."""
        found = {"data": self.data_name, "ingest": user_images.VERSION, **recipes.ingest_parameters(self.recipe)}
        return found if self.test_fraction is None else found | {"test_fraction": self.test_fraction}

    @property
    def test_fraction(self) -> float | None:
        """Share of rows that a hash of their content makes test rows; None if the source defines the test rows."""
        if self.data is not None:
            return manifest.load(self.data).parameters.get("test_fraction")
        return self.user_images.test_fraction if self.user_images else None

    @property
    def train_parameters(self) -> dict[str, Any]:
        """Parameters that determine the weights besides the prepared dataset."""
        fields = recipes.training_parameters(self.recipe)
        if self.initial is not None:
            fields["start"] = self.initial.fingerprint
        if self.cores:  # the number of threads changes the order of summation
            fields["cores"] = self.cores
        return fields | {"workers": "auto" if self.workers is None else self.workers}

    @property
    def needs(self) -> Needs:
        """Resources that each worker requires."""
        return needs_of(self.recipe)

    @property
    def gate(self) -> dict[str, Any]:
        """Settings of the gate; optional ones are present only if requested."""
        is_user_images = self.is_user_images or self.recipe.data.source == sources.USER_IMAGES
        return gate.settings_of(self.recipe, judge_only=self.judge_only, is_user_images=is_user_images)

    def predictions_of(self, checkpoint: CheckpointURI) -> PredictionsURI:
        """Return the URI of the predictions of any `checkpoint` on this plan's test rows."""
        return predictions_of(self.root, checkpoint, self.prepared, split="test")

    def rivals(self) -> list[CheckpointURI]:
        """List the models that this run's model will be compared with on the same rows."""
        decisions = registry.history(self.root, self.registered_model)
        return list(gate.rivals_of(self.checkpoint, decisions, self.gate).values())

    def uses(self) -> list[URI]:
        """List all URIs that a run reads or writes, including rivals; not the report, whose URI needs the decision."""
        with deadline(self.stage_timeout_s):
            rivals = self.rivals()
        found = [self.files, self.raw, self.prepared, self.initial, self.checkpoint, self.predictions, self.evaluation]
        for rival in rivals:
            predictions = self.predictions_of(rival)
            found += [rival, predictions, evaluation_of(self.root, predictions)]
        return [uri for uri in found if uri is not None]

    def needs_ray(self) -> bool:
        """Return whether a stage that runs on Ray has no committed result yet, including predictions of rivals."""
        with deadline(self.stage_timeout_s):
            uris: list[URI] = [self.prepared, self.checkpoint, self.predictions]
            uris += [self.raw] if self.ingest_on_ray() else []
            uris += map(self.predictions_of, self.rivals())
            return not all(manifest.is_committed(uri) for uri in uris)

    def ingest_on_ray(self) -> bool:
        """Return whether ingest is worth a Ray job: the data is large, in pieces that can be spread over nodes."""
        if self.user_images is not None:
            return self.user_images.is_large
        if self.files is None or manifest.is_committed(self.raw) or len({f.shard for f in self.source.files}) <= 1:
            return False
        try:
            listed = manifest.load(self.files).files
        except FileNotFoundError:  # not downloaded yet, so the size is unknown
            return True
        return sum(file.size for file in listed) > user_images.MAX_IN_PROCESS_BYTES

    @functools.cached_property
    def _places(self) -> dict[str, Any]:
        """Cache of result URIs by kind, filled once they are final."""
        return {}

    def _place(self, kind: Kind[U], parents: list[URI], *, beside: Sequence[URI] = (), **how: Any) -> U:
        """Return the URI of the result of `kind`, which also depends on the bytes of committed parents.

        The user's own data may be in several registered models: a result that was made for another one is found too.
        """
        find = functools.partial(
            result_uri, kind, self.root, parents=parents, beside=beside, by_any_name=self.is_user_images, **how
        )
        return self._once(kind, [*parents, *beside], find)

    def _once(self, kind: Kind[U], parents: list[URI], find: Callable[[], U]) -> U:
        """Return `find()`; cache it once `parents`, whose bytes it depends on, are final and committed."""
        if kind.name in self._places:
            return kind.uri(self._places[kind.name])
        found = find()
        before = _CHAIN[: _CHAIN.index(kind.name)]
        if self._places.keys() >= set(before) and all(map(manifest.is_committed, parents)):
            self._places[kind.name] = found
        return found

    def _source(self, kind: Kind[U], parameters: dict[str, Any]) -> U:
        """Return the URI of a result without parents."""
        made_from = parameters | {"refresh": self.refresh}
        return result_uri(kind, self.root, name=self.data_name, parents=[], parameters=made_from)
