"""Results of one run: found by the URI or the name of any of them, by a champion's name, or as the latest."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from storage import manifest, reference
from storage.admin import catalog, runs
from storage.kinds import CheckpointURI, DatasetURI, Kind, PredictionsURI, U
from storage.manifest import Damaged, Manifest
from storage.uri import URI, Root
from tasks.stages import Evaluate, Predict

_FOLLOWED = ("evaluation", "predictions", "checkpoint", "prepared", "raw")
"""Roles of the parents that belong to the same run; initial weights and other datasets do not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """One result, what it was made from, and the test predictions of its model, as far as they exist."""

    uri: URI
    manifests: Mapping[str, tuple[URI, Manifest]]
    """URI and manifest of the result of each kind."""
    missing: Mapping[str, str]
    """By kind, why a result that is known cannot be read."""

    @classmethod
    def of(cls, uri: URI) -> Self:
        """Read the manifests of the committed result `uri` and of those that belong to it."""
        manifests: dict[str, tuple[URI, Manifest]] = {}
        missing: dict[str, str] = {}

        def add(kind: str, place: URI) -> None:
            if kind in manifests:
                return
            try:
                recorded = manifest.load(place)
            except (FileNotFoundError, Damaged, ValueError) as error:  # deleted
                missing[kind] = str(error)
                return
            manifests[kind] = place, recorded
            for role in (role for role in _FOLLOWED if role in recorded.parents):
                add(role, recorded.parent(role, of=place))

        add(manifest.load(uri).kind, uri)
        if {"checkpoint", "prepared"} <= manifests.keys():
            checkpoint, prepared = CheckpointURI(manifests["checkpoint"][0]), DatasetURI(manifests["prepared"][0])
            root = reference.root_of(uri)
            add("predictions", Predict.of(checkpoint, prepared, split="test", root=root).target)
        if "predictions" in manifests:
            add("evaluation", Evaluate(predictions=PredictionsURI(manifests["predictions"][0])).target)
        return cls(uri=uri, manifests=manifests, missing=missing)

    def manifest(self, kind: Kind[Any, Any]) -> Manifest | None:
        return self.manifests[kind.name][1] if kind.name in self.manifests else None

    def require(self, kind: Kind[U, Any]) -> tuple[U, Manifest]:
        """Return the result of `kind` and its manifest; raise `ValueError` with the next step if there is none."""
        if kind.name not in self.manifests:
            why = self.missing.get(kind.name) or f"{self.uri} has no {kind.name}"
            raise ValueError(f"{why}; name a result of a whole run, or run its pipeline again")
        uri, recorded = self.manifests[kind.name]
        return kind.uri(uri), recorded


def find(root: Root, word: str, *, option: str) -> Results:
    """Return the results of the run that `word` names: any of its URIs or names, `champion:NAME`, or `champion`.

    Raises `ValueError` naming `option` if there is no such result.
    """
    uri = catalog.named(root, word, option=option)
    catalog.committed(uri, option=option)
    return Results.of(uri)


def latest(root: Root) -> Results:
    """Return the results of the run whose report was written last; raise `ValueError` if there is none."""
    rows, _ = runs.of(root)
    if not rows:
        raise ValueError(
            f"--storage: {root} has no report of a run; train a model first: data-to-model run, or name a result"
        )
    return Results.of(rows[-1]["uri"])
