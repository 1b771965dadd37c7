"""URIs of results, such that a result always belongs to the bytes of its parents.

A parent that was deleted and made again may have other bytes under the same name, and so may one below another root.
Results of other bytes keep their URIs; results of the parents in hand get other URIs.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic

from storage import kinds, manifest, reference, registry
from storage.commits import ParentChanged
from storage.decision import Decision
from storage.kinds import Kind, U
from storage.manifest import Damaged, Manifest
from storage.uri import URI, CheckpointURI, DatasetURI, EvaluationURI, PredictionsURI, ReportURI, Root, fingerprint
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
    """Return the result of `kind` that is or will be made from `parents` as they are now.

    Args:
        kind: Its stage and version are part of the fingerprint.
        root: Storage root below which the result lies.
        name: Name of the result, before its fingerprint.
        parents: Results that it is made from; those not committed yet may have any bytes.
        parameters: Other values that determine it.
    """
    prints = [parent.uri.fingerprint for parent in parents]
    contents = [parent.manifest.content if parent.manifest else None for parent in parents]
    usual = read(kind.place(root, f"{name}-{_digest(kind, prints, parameters)}"))
    recorded = {parent.content for parent in usual.manifest.parents.values()} if usual.manifest else None
    if not parents or recorded is None or recorded >= {content for content in contents if content}:
        return usual
    return read(kind.place(root, f"{name}-{_digest(kind, prints, parameters, contents)}"))


def check_name(kind: Kind[Any], uri: URI, parents: Mapping[str, URI], parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each committed parent's content; raise `ParentChanged` unless `uri` is named after them."""
    prints = [parent.fingerprint for parent in parents.values()]
    manifests = {role: read(parent).manifest for role, parent in parents.items()}
    contents = {role: recorded.content for role, recorded in manifests.items() if recorded}
    names = {_digest(kind, prints, parameters), _digest(kind, prints, parameters, [*contents.values()])}
    if uri.fingerprint not in names and len(contents) == len(parents):
        made_from = ", ".join(parents.values())
        raise ParentChanged(f"{uri} is not the name of the result of {made_from}; run again, which plans anew")
    return contents


def _digest(
    kind: Kind[Any], parents: list[str], parameters: Mapping[str, Any], contents: list[Any] | None = None
) -> str:
    made_from = dict(parameters) | ({"parents": contents} if contents else {})
    return fingerprint(kind.stage, version=kind.version, parents=parents, parameters=made_from)


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
