"""The flow `audit`: which labels are probably wrong, from trainings that each leave out some of the images."""

from typing import Any

from prefect import Flow

from tasks.audit import audit as find_suspects
from tasks.auditing import rows
from tasks.download import download
from tasks.ingest import ingest
from tasks.orchestration.prefect_options import flow_options, unvisited
from tasks.orchestration.stage import using
from tasks.orchestration.summary import outcome, summarize_audit
from tasks.planning.audit_request import AuditRequest
from tasks.predict import predict
from tasks.preprocess import preprocess
from tasks.runners.session import session
from tasks.train import train


def flow_of(request: AuditRequest) -> Flow[..., Any]:
    """Return the flow that carries out `request` and returns its outcome; existing results are reused."""

    def audit(data: str, recipe: str, storage: str, settings: dict[str, Any], workers: int | None) -> Any:
        plan = request.plan
        with (
            using(plan.root, request.uses) as stages,
            session(wanted=request.needs_ray, workers=plan.train.workers) as runner,
        ):
            if not request.is_done:
                files = download(plan.files, plan.train.weights, request.download, plan.timeouts)
                raw = ingest(files, plan.raw, unvisited(plan.ingest), plan.timeouts, runner)
                for fold in request.folds:
                    prepared = preprocess(raw, fold.prepared, fold.preprocess, plan.timeouts, runner)
                    checkpoint = train(prepared, fold.checkpoint, plan.train, plan.timeouts, runner)
                    predict(checkpoint, prepared, fold.predictions, fold.predict, plan.timeouts, runner)
            predictions = [fold.predictions for fold in request.folds]
            audit = find_suspects(predictions, request.audit, plan.timeouts)
            return outcome(summarize_audit(request, rows.read(audit), stages))

    return Flow(audit, name="audit", **flow_options)
