"""URIs of results: each is named after the names of its parents and the values that determine it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic

from storage import kinds, manifest, reference, registry
from storage.decision import Decision
from storage.kinds import Kind, U
from storage.manifest import Damaged, Manifest
from storage.uri import CheckpointURI, DatasetURI, EvaluationURI, PredictionsURI, ReportURI, Root, fingerprint
from tasks.jobs.spec import predict_values


@dataclasses.dataclass(frozen=True)
class Result(Generic[U]):
    """A result as it was when storage was read."""

    uri: U
    manifest: Manifest | None
    """None: it is not committed, or its manifest cannot be read."""


def read(uri: U) -> Result[U]:
    """Read the manifest of `uri`, if it is there."""
    try:
        return Result(uri, manifest.load(uri))
    except (FileNotFoundError, Damaged):  # reported where the result is used
        return Result(uri, None)


def find_result(
    kind: Kind[U], root: Root, *, name: str, parents: Sequence[Result[Any]] = (), parameters: Mapping[str, Any]
) -> Result[U]:
    """Return the result of `kind` that is or will be made from `parents`.

    Args:
        kind: Its stage and version are part of the fingerprint.
        root: Storage root below which the result lies.
        name: Name of the result, before its fingerprint.
        parents: Results that it is made from.
        parameters: Other values that determine it.
    """
    prints = [parent.uri.fingerprint for parent in parents]
    digest = fingerprint(kind.stage, version=kind.version, parents=prints, parameters=dict(parameters))
    return read(kind.place(root, f"{name}-{digest}"))


def predictions_of(
    root: Root,
    checkpoint: CheckpointURI,
    dataset: DatasetURI,
    *,
    split: str | None,
    min_confidence: float | None = None,
) -> PredictionsURI:
    """Return the URI of the predictions of `checkpoint` on one split (None: all rows) of `dataset`."""
    return find_predictions(root, read(checkpoint), read(dataset), split=split, min_confidence=min_confidence).uri


def find_predictions(
    root: Root,
    checkpoint: Result[CheckpointURI],
    dataset: Result[DatasetURI],
    *,
    split: str | None,
    min_confidence: float | None = None,
) -> Result[PredictionsURI]:
    """Return the predictions of `checkpoint` on one split (None: all rows) of `dataset`."""
    name = checkpoint.uri.name.rpartition("-")[0]
    parents: list[Result[Any]] = [checkpoint, dataset]
    values = predict_values(split, min_confidence)
    return find_result(kinds.PREDICTIONS, root, name=name, parents=parents, parameters=values)


def evaluation_of(root: Root, predictions: PredictionsURI) -> EvaluationURI:
    """Return the URI of the evaluation of `predictions`."""
    name = predictions.name.rpartition("-")[0]
    return find_result(kinds.EVALUATION, root, name=name, parents=[read(predictions)], parameters={}).uri


def report_of(evaluation: EvaluationURI, decision: Decision, *, register_as: str | None = None) -> ReportURI:
    """Return the URI of the report on `evaluation` and `decision`."""
    root, name = reference.root_of(evaluation), evaluation.name.rpartition("-")[0]
    parameters: dict[str, Any] = {"decision": decision_as_json(decision, root)}
    parameters |= {"register_as": register_as} if register_as else {}
    return find_result(kinds.REPORT, root, name=name, parents=[read(evaluation)], parameters=parameters).uri


def decision_as_json(decision: Decision, root: Root) -> dict[str, Any]:
    """Serialize the decision without what only its entry has."""
    return registry.with_references(decision, root, exclude={"decided", "author", "weights"})
