"""Request for an audit: a plan for each training, derived from the plan of a run."""

import dataclasses
from typing import Any

from storage import manifest
from storage.uri import URI, Root
from tasks.images.option import is_needed
from tasks.planning import warm_start
from tasks.planning.plan import Plan, uses
from tasks.resources.needs import Needs
from tasks.stages import Audit, Download, Predict, Preprocess, Stage, Train


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fold:
    """One training of an audit, and its predictions on rows that it was not trained on."""

    preprocess: Preprocess
    train: Train
    predict: Predict


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """A checked request for an audit; the same request gives the same URIs."""

    plan: Plan
    """Plan of a run on the same data, whose raw dataset and settings are those of the audit."""
    folds: tuple[Fold, ...]
    audit: Audit
    weights: Download | None
    """Download of initial weights, unless nothing needs them."""
    is_done: bool
    """Whether the audit is committed: then its trainings may have been deleted."""
    needs_ray: bool

    @property
    def root(self) -> Root:
        """Storage root."""
        return self.plan.root

    @property
    def needs(self) -> Needs:
        """Resources for each training."""
        return self.plan.needs

    @property
    def uses(self) -> list[URI]:
        """All URIs that the audit reads or writes."""
        chain: list[Stage[Any] | None] = [self.plan.download, self.weights, self.plan.ingest]
        chain += [stage for fold in self.folds for stage in (fold.preprocess, fold.train, fold.predict)]
        return uses([*chain, self.audit])


def resolve(plan: Plan, *, folds: int, is_fast: bool) -> AuditRequest:
    """Derive the trainings from `plan`: one for each of `folds`, or if `is_fast` its own, which judges validation."""
    if is_fast:
        judged = plan.predict.model_copy(update={"split": "validation"})
        planned = [Fold(preprocess=plan.preprocess, train=plan.train, predict=judged)]
    else:
        planned = [_fold(plan, number, folds) for number in range(folds)]
    audit = Audit(predictions=tuple(fold.predict.target for fold in planned))
    stored = plan.train.weights
    needs_weights = stored and any(is_needed(stored, child=fold.train.target) for fold in planned)
    weights = warm_start.initial_weights(plan.recipe) if needs_weights else None
    is_done = manifest.is_committed(audit.target)
    return AuditRequest(
        plan=plan,
        folds=tuple(planned),
        audit=audit,
        weights=Download.of(weights, plan.root) if weights else None,
        is_done=is_done,
        needs_ray=not is_done and not all(map(manifest.is_committed, audit.predictions)),
    )


def _fold(plan: Plan, number: int, folds: int) -> Fold:
    """Return the training whose test rows are fold `number` of all rows."""
    preprocess = plan.preprocess.model_copy(update={"fold": number, "folds": folds})
    train = plan.train.model_copy(update={"prepared": preprocess.target})
    predict = Predict(checkpoint=train.target, dataset=preprocess.target, split="test")
    return Fold(preprocess=preprocess, train=train, predict=predict)
