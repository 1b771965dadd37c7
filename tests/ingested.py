"""What a run makes, without Prefect."""

from storage.decision import Decision
from storage.uri import DatasetURI
from tasks.download import download
from tasks.evaluate import evaluate
from tasks.ingest import ingest
from tasks.planning.plan import Plan
from tasks.predict import predict
from tasks.preprocess import preprocess
from tasks.promote import promote
from tasks.report import report
from tasks.runners.runner import InProcessRunner, Runner
from tasks.train import train


def ingested(plan: Plan, runner: Runner | None = None) -> DatasetURI:
    """Download and ingest what `plan` asks for."""
    files = download.fn(plan.files, plan.train.weights, plan.download, plan.timeouts)
    return ingest.fn(files, plan.raw, plan.ingest, plan.timeouts, runner or InProcessRunner())


def run(plan: Plan, runner: Runner | None = None) -> Decision:
    """Run every task of `plan`, as the flow does."""
    runner = runner or InProcessRunner()
    prepared = preprocess.fn(ingested(plan, runner), plan.prepared, plan.preprocess, plan.timeouts, runner)
    checkpoint = train.fn(prepared, plan.checkpoint, plan.train, plan.timeouts, runner)
    predictions = predict.fn(checkpoint, prepared, plan.predictions, plan.predict, plan.timeouts, runner)
    evaluation = evaluate.fn(predictions, plan.evaluation, plan.timeouts)
    decision = promote.fn(checkpoint, evaluation, plan.promote, plan.timeouts, runner)
    report.fn(checkpoint, predictions, evaluation, decision, plan.report, plan.timeouts)
    return decision
