"""The flow `audit`: which labels are probably wrong, by embeddings of the images."""

from typing import Any

from prefect import flow

from flows.cli.commands import AuditOptions
from flows.cli.preflight import checked_audit
from flows.pipeline import prepare
from tasks.audit import audit as find_suspects
from tasks.auditing import rows
from tasks.download import download
from tasks.embed import embed
from tasks.orchestration.prefect_options import flow_options
from tasks.orchestration.stage import using
from tasks.orchestration.summary import outcome, summarize_audit
from tasks.runners.session import session
from tasks.train import train


@flow(name="audit", **flow_options)
def audit(data: str, recipe: str, storage: str, settings: dict[str, Any], workers: int | None) -> Any:
    """Find wrong labels; existing results are reused."""
    options = locals()
    request = checked_audit(AuditOptions(**options))
    plan = request.plan
    recipe_, limits, needs = plan.recipe, plan.limits, plan.predict_needs
    with using(plan.root, request.uses) as steps, session(wanted=request.needs_ray, workers=workers) as runner:
        if not request.is_done:
            if request.weights:
                download(request.weights, limits=limits, name="download weights")
            if plan.download:
                download(plan.download, limits=limits)
            prepared = prepare(plan, runner)
            if request.train:
                train(prepared, recipe_, runner, workers=workers, cores=request.train.cores, limits=limits)
            embed(request.embed, runner, needs=needs, limits=limits)
        suspects = find_suspects(request.audit.embeddings, limits=limits)
        return outcome(summarize_audit(request, rows.read(suspects), steps))
