"""Request for an audit: embeddings of the images of a run, and the audit that judges their labels."""

import dataclasses

from storage import manifest
from storage.uri import URI, Root
from tasks.images.option import is_needed
from tasks.planning import warm_start
from tasks.planning.plan import Plan, uses
from tasks.resources.needs import Needs
from tasks.stages import Audit, Download, Embed, Train


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """A checked request for an audit; the same request gives the same URIs."""

    plan: Plan
    """Plan of a run on the same data, whose datasets and backbone are those of the audit."""
    weights: Download | None
    """Download of initial weights, unless nothing needs them."""
    train: Train | None
    """The run's training, if its backbone starts from random weights: then the audit judges by what it learned."""
    embed: Embed
    audit: Audit
    is_done: bool
    """Whether the audit is committed: then what it was made from may have been deleted."""
    needs_ray: bool

    @property
    def root(self) -> Root:
        return self.plan.root

    @property
    def needs(self) -> Needs:
        return self.plan.needs

    @property
    def uses(self) -> list[URI]:
        plan = self.plan
        data = [plan.download, self.weights, plan.ungrouped, plan.grouping, plan.ingest, plan.preprocess]
        return uses([*data, self.train, self.embed, self.audit])


def resolve(plan: Plan) -> AuditRequest:
    """Derive the embeddings from `plan`: by the weights that its training starts from, else by those it ends with."""
    train = None if plan.train.start else plan.train
    start = plan.train.start or plan.train.target
    embed = Embed(prepared=plan.preprocess.target, model=plan.recipe.model, start=start)
    audit = Audit(embeddings=embed.target)
    weights = None
    if plan.train.weights and is_needed(plan.train.weights, child=embed.target):
        weights = warm_start.initial_weights(plan.recipe)
    is_done = manifest.is_committed(audit.target)
    return AuditRequest(
        plan=plan,
        weights=Download.of(weights, plan.root) if weights else None,
        train=train,
        embed=embed,
        audit=audit,
        is_done=is_done,
        needs_ray=not is_done and not manifest.is_committed(embed.target),
    )
