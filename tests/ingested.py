"""What a run makes, without Prefect."""

from storage.decision import Decision
from storage.uri import DatasetURI, EvaluationURI
from tasks.download import download
from tasks.embed import embed
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
    for stage in (plan.weights, plan.download):
        if stage:
            download.fn(stage)
    if not plan.ingest:
        return plan.preprocess.raw
    group = plan.recipe.split.group
    return ingest.fn(plan.ingest.made_from, plan.recipe.data, runner or InProcessRunner(), group=group)


def evaluated(plan: Plan, runner: Runner | None = None) -> EvaluationURI:
    """Run the tasks of `plan` that come before the gate."""
    runner, recipe, workers = runner or InProcessRunner(), plan.recipe, plan.train.workers
    prepared = preprocess.fn(ingested(plan, runner), recipe.split, runner)
    start, embeddings = plan.train.start, None
    if plan.embed:
        embeddings = embed.fn(prepared, recipe.model, runner, start=start)
    checkpoint = train.fn(prepared, recipe, runner, start=start, embeddings=embeddings, workers=workers)
    if plan.embed_by_model:
        embed.fn(prepared, recipe.model, runner, start=checkpoint)
    own, needs = plan.predict.embeddings, plan.predict_needs
    return evaluate.fn(predict.fn(checkpoint, prepared, runner, split="test", embeddings=own, needs=needs))


def run(plan: Plan, runner: Runner | None = None) -> Decision:
    """Run every task of `plan`, as the flow does."""
    runner, recipe, model = runner or InProcessRunner(), plan.recipe, plan.registered_model
    evaluation, checkpoint = evaluated(plan, runner), plan.train.target
    decision = promote.fn(checkpoint, evaluation, model, recipe.gate, runner, judge_only=plan.judge_only)
    report.fn(evaluation, decision, recipe, model, register_as=plan.register_as, command=plan.command)
    return decision
