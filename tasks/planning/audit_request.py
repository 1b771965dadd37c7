"""Request for an audit: a plan for each training, derived from the plan of a run."""

import dataclasses
from typing import Any

from storage import kinds, manifest
from storage.uri import URI, AuditURI, CheckpointURI, DatasetURI, PredictionsURI
from tasks.planning import warm_start
from tasks.planning.data_option import is_needed
from tasks.planning.plan import DownloadParameters, Plan
from tasks.planning.result_uris import predictions_of, result_of
from tasks.stages import PredictParameters


@dataclasses.dataclass(frozen=True)
class Fold:
    """One training of an audit, and its predictions on rows that it was not trained on."""

    prepared: DatasetURI
    preprocess: dict[str, Any]
    checkpoint: CheckpointURI
    predictions: PredictionsURI
    predict: PredictParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """A checked request for an audit; the same request gives the same URIs."""

    plan: Plan
    """Plan of a run on the same data, whose raw dataset and settings are those of the audit."""
    folds: tuple[Fold, ...]
    audit: AuditURI
    download: DownloadParameters
    uses: tuple[URI, ...]
    is_done: bool
    """Whether the audit is committed: then its trainings may have been deleted."""
    needs_ray: bool


def resolve(plan: Plan, *, folds: int, is_fast: bool) -> AuditRequest:
    """Derive the trainings from `plan`: one for each of `folds`, or if `is_fast` its own, which judges validation."""
    if is_fast:
        of_run = predictions_of(plan.root, plan.checkpoint, plan.prepared, split="validation")
        predict = plan.predict.model_copy(update={"split": "validation"})
        planned = [Fold(plan.prepared, plan.preprocess, plan.checkpoint, of_run, predict)]
    else:
        planned = [_fold(plan, number, folds) for number in range(folds)]
    predictions = [fold.predictions for fold in planned]
    name = plan.checkpoint.name.rpartition("-")[0]
    audit = result_of(kinds.AUDIT, plan.root, name=name, parents=predictions, parameters={})
    stored = plan.train.weights
    needs_weights = stored and any(is_needed(stored, child=fold.checkpoint) for fold in planned)
    weights = warm_start.initial_weights(plan.recipe) if needs_weights else None
    uses: list[URI | None] = [plan.files, plan.raw, plan.train.weights, audit]
    uses += [uri for fold in planned for uri in (fold.prepared, fold.checkpoint, fold.predictions)]
    is_done = manifest.is_committed(audit)
    return AuditRequest(
        plan=plan,
        folds=tuple(planned),
        audit=audit,
        download=dataclasses.replace(plan.download, weights=weights),
        uses=tuple(uri for uri in uses if uri is not None),
        is_done=is_done,
        needs_ray=not is_done and not all(map(manifest.is_committed, predictions)),
    )


def _fold(plan: Plan, number: int, folds: int) -> Fold:
    """Return the training whose test rows are fold `number` of all rows."""
    values = plan.preprocess | {"fold": number, "folds": folds}
    data_name, name = (uri.name.rpartition("-")[0] for uri in (plan.prepared, plan.checkpoint))
    prepared = result_of(kinds.PREPARED, plan.root, name=data_name, parents=[plan.raw], parameters=values)
    parents: list[URI] = [prepared, *([plan.train.weights] if plan.train.weights else [])]
    checkpoint = result_of(kinds.CHECKPOINT, plan.root, name=name, parents=parents, parameters=plan.train.parameters)
    predictions = predictions_of(plan.root, checkpoint, prepared, split="test")
    return Fold(prepared, values, checkpoint, predictions, plan.predict)
