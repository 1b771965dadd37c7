"""URIs of results: each is named after the names of its parents and the values that determine it."""

from collections.abc import Mapping, Sequence
from typing import Any

from storage import kinds, reference, registry
from storage.decision import Decision
from storage.kinds import Kind, U
from storage.uri import URI, CheckpointURI, DatasetURI, EvaluationURI, PredictionsURI, ReportURI, Root, fingerprint


def result_of(
    kind: Kind[U, Any], root: Root, *, name: str, parents: Sequence[URI] = (), parameters: Mapping[str, Any]
) -> U:
    """Return the URI of the result of `kind` that is or will be made from `parents` and `parameters`.

    Its name is `name` and a fingerprint of these and of the stage and version of `kind`.
    """
    prints = [parent.fingerprint for parent in parents]
    digest = fingerprint(kind.stage, version=kind.version, parents=prints, parameters=dict(parameters))
    return kind.place(root, f"{name}-{digest}")


def predictions_of(root: Root, checkpoint: CheckpointURI, dataset: DatasetURI, *, split: str | None) -> PredictionsURI:
    """Return the URI of the predictions of `checkpoint` on one split (None: all rows) of `dataset`."""
    name = checkpoint.name.rpartition("-")[0]
    return result_of(kinds.PREDICTIONS, root, name=name, parents=[checkpoint, dataset], parameters={"split": split})


def evaluation_of(root: Root, predictions: PredictionsURI) -> EvaluationURI:
    """Return the URI of the evaluation of `predictions`."""
    name = predictions.name.rpartition("-")[0]
    return result_of(kinds.EVALUATION, root, name=name, parents=[predictions], parameters={})


def report_of(evaluation: EvaluationURI, decision: Decision, *, register_as: str | None = None) -> ReportURI:
    """Return the URI of the report on `evaluation` and `decision`."""
    root, name = reference.root_of(evaluation), evaluation.name.rpartition("-")[0]
    parameters: dict[str, Any] = {"decision": decision_as_json(decision, root)}
    parameters |= {"register_as": register_as} if register_as else {}
    return result_of(kinds.REPORT, root, name=name, parents=[evaluation], parameters=parameters)


def decision_as_json(decision: Decision, root: Root) -> dict[str, Any]:
    """Serialize the decision without what only its entry has."""
    return registry.with_references(decision, root, exclude={"decided", "author", "weights"})
