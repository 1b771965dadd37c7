"""URIs of the results of stages, such that a result always belongs to the bytes of its parents.

A parent that was deleted and made again may have other bytes under the same name, and so may one below another root.
Results of other bytes keep their URIs; results of the parents in hand get other URIs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage import files, kinds, manifest, registry
from storage.decision import Decision
from storage.kinds import Kind, U
from storage.manifest import Damaged
from storage.uri import URI, CheckpointURI, DatasetURI, EvaluationURI, PredictionsURI, ReportURI, Root, fingerprint

if TYPE_CHECKING:
    from tasks.planning.plan import Plan


def result_uri(
    kind: Kind[U],
    root: Root,
    *,
    name: str,
    parents: Sequence[URI],
    parameters: dict[str, Any],
    beside: Sequence[URI] = (),
    by_any_name: bool = False,
) -> U:
    """Return the URI for a result of `kind`; a result that is committed there was made from the parents' bytes.

    Args:
        kind: Its stage and version are part of the fingerprint.
        root: Storage root below which it lies.
        name: Name of the result, before its fingerprint.
        parents: Results that this one is made from; those not committed yet may have any bytes.
        parameters: Other values that determine the result.
        beside: Further parents, which follow from the others or are already part of `parameters`.
        by_any_name: Whether to also find a result with the same fingerprint under another name.
    """

    def called(**more: Any) -> U:
        prints = [uri.fingerprint for uri in parents]
        digest = fingerprint(kind.stage, version=kind.version, parents=prints, parameters=parameters | more)
        wanted = kind.place(root, f"{name}-{digest}")
        return kind.uri(_there(wanted)) if by_any_name else wanted

    usual, contents = called(), [_content(uri) for uri in (*parents, *beside)]
    if not contents or _may_be_made_from(contents, usual):
        return usual
    return called(parents=contents)


def _there(wanted: URI) -> URI:
    """Return the committed result with the fingerprint of `wanted`, under any name in its folder; else `wanted`."""
    named = sorted(name for name in files.children(wanted.parent) if name.endswith(f"-{wanted.fingerprint}"))
    found = [uri for uri in map(wanted.parent.child, named) if manifest.is_committed(uri)]
    return found[0] if found and wanted not in found else wanted


def _may_be_made_from(contents: Sequence[str | None], uri: URI) -> bool:
    """Return whether the result at `uri` records parents with `contents` (None: not known), or is not there yet."""
    try:
        parents = manifest.load(uri).parents.values()
    except (FileNotFoundError, Damaged):  # reported where the result is used
        return True
    return {parent.content for parent in parents} >= {content for content in contents if content}


def _content(uri: URI) -> str | None:
    try:
        return manifest.load(uri).content
    except (FileNotFoundError, Damaged):
        return None


def predictions_of(root: Root, checkpoint: CheckpointURI, dataset: DatasetURI, *, split: str | None) -> PredictionsURI:
    """Return the URI of the predictions of `checkpoint` on one split (None: all rows) of `dataset`."""
    name, parents = checkpoint.name.rpartition("-")[0], [checkpoint, dataset]
    return result_uri(kinds.PREDICTIONS, root, name=name, parents=parents, parameters={"split": split})


def evaluation_of(root: Root, predictions: PredictionsURI) -> EvaluationURI:
    """Return the URI of the evaluation of `predictions`."""
    name = predictions.name.rpartition("-")[0]
    return result_uri(kinds.EVALUATION, root, name=name, parents=[predictions], parameters={})


def report_of(plan: "Plan", decision: Decision) -> ReportURI:
    """Return the URI of the report on the evaluation of `plan` and `decision`."""
    name = plan.evaluation.name.rpartition("-")[0]
    parameters: dict[str, Any] = {"decision": decision_as_json(decision, plan.root)}
    parameters |= {"register_as": plan.register_as} if plan.register_as else {}
    how: dict[str, Any] = {"parents": [plan.evaluation], "beside": [plan.checkpoint, plan.predictions]}
    return result_uri(kinds.REPORT, plan.root, name=name, parameters=parameters, **how)


def decision_as_json(decision: Decision, root: Root) -> dict[str, Any]:
    """Serialize the decision without what only its entry has."""
    only_recorded = {"event", "decided", "author", "weights"}
    return registry.with_references(decision, root, exclude=only_recorded)
