"""Plan of a run: the chain of its stages, each made from the target of the one before, as plain values."""

import dataclasses
import shlex
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict

from storage.kinds import CheckpointURI
from storage.uri import URI, Root
from tasks.learning import recipes
from tasks.learning.recipes import Recipe
from tasks.resources.needs import Limits, Needs, needs_of
from tasks.stages import Download, Embed, Evaluate, Ingest, Predict, Preprocess, Stage, Train


class Plan(BaseModel):
    """A run, as `make_plan` found storage; the same request gives the same stages."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: Root
    data: URI | None
    """Folder with the user's images, or an existing raw dataset; None: the recipe's source."""
    labels: str
    """Table with their labels, as `--labels` names it; empty: the folders are the classes."""
    download: Download | None
    """None for the user's images, and if the files are gone but the raw dataset exists."""
    weights: Download | None
    """Download of initial weights; None if there are none, or nothing needs them any more."""
    ungrouped: Ingest | None
    """Makes the images that `grouping` embeds; None for an existing raw dataset."""
    grouping: Embed | None
    """Finds the near duplicates that stay in one split; None unless `split.group` asks for it."""
    ingest: Ingest | None
    """None for an existing raw dataset."""
    preprocess: Preprocess
    embed: Embed | None
    """None for a model without a probe."""
    train: Train
    embed_by_model: Embed | None
    """By the trained model, for the distances of its predictions; None if `embed` serves, and for downloaded images."""
    predict: Predict
    evaluate: Evaluate
    registered_model: str
    """Registered model to compete for."""
    register_as: str | None
    """The same, if the user named it; None: the default one of the data."""
    judge_only: bool
    """Whether the champion stays in any case."""
    rival: CheckpointURI | None
    """The model that the new one will be compared with, if no other run changes the champion meanwhile."""
    replaces: CheckpointURI | None = None
    """Champion to forget, in whose place the new model is promoted whatever the gate says."""
    needs_ray: bool
    """Whether a stage that runs on Ray has no committed result, including predictions of the rival."""
    limits: Limits

    @property
    def recipe(self) -> Recipe:
        """The recipe, with the settings that an existing raw dataset was made with."""
        return self.train.recipe

    @property
    def needs(self) -> Needs:
        """Resources for the training, and as requested the number of workers."""
        return needs_of(self.recipe, self.train.workers)

    @property
    def predict_needs(self) -> Needs:
        """Resources for predictions: a batch of training does not limit their workers."""
        return dataclasses.replace(self.needs, batch_size=None)

    @property
    def stages(self) -> list[Stage[Any]]:
        """All stages of the run but the report, whose URI needs the decision."""
        before = [self.download, self.weights, self.ungrouped, self.grouping, self.ingest, self.preprocess, self.embed]
        after = [self.train, self.embed_by_model, self.predict, self.evaluate]
        return [stage for stage in (*before, *after) if stage]

    @property
    def of_rival(self) -> list[Stage[Any]]:
        """The stages by which the rival is judged."""
        if not self.rival:
            return []
        predict = Predict.of(self.rival, self.predict.dataset, split=self.predict.split, root=self.root)
        return [predict, Evaluate(predictions=predict.target)]

    @property
    def uses(self) -> list[URI]:
        """All URIs that the run reads or writes, as far as they are known: not the report."""
        return uses([*self.stages, *self.of_rival])

    @property
    def command(self) -> str:
        """The command that makes the same results in another storage root; no `--refresh`, which changes them."""
        options: dict[str, str | int | None] = {"--data": self.data, "--labels": self.labels or None}
        options |= {"--register-as": self.register_as, "--workers": self.train.workers, "--cores": self.train.cores}
        words = ["python", "flows/pipeline.py", "--recipe", self.recipe.origin or self.recipe.name]
        for name, value in recipes.changes(self.recipe).items():
            words += ["--set", f"{name}={value}"]
        for option, given in options.items():
            words += [option, str(given)] if given is not None else []
        return shlex.join(words)


def uses(stages: Iterable[Stage[Any] | None]) -> list[URI]:
    """Return all URIs that `stages` read or write; None is no stage."""
    uris: dict[URI, None] = {}
    for stage in filter(None, stages):
        listings = [stage.listing.parent] if isinstance(stage, Ingest) and stage.listing else []
        uris |= dict.fromkeys([*stage.parents.values(), *listings, stage.target])
    return list(uris)
