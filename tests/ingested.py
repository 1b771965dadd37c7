"""What a run makes, without Prefect."""

from storage.decision import Decision
from storage.kinds import DatasetURI, EvaluationURI
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
    runner, recipe, group = runner or InProcessRunner(), plan.recipe, plan.recipe.split.group
    if plan.ungrouped:
        ingest.fn(plan.ungrouped.made_from, recipe.data, runner)
    if plan.grouping:
        embed.fn(plan.grouping, runner)
    if not plan.ingest:
        return plan.preprocess.raw
    embeddings = plan.ingest.embeddings
    return ingest.fn(plan.ingest.made_from, recipe.data, runner, group=group, embeddings=embeddings)


def prepared(plan: Plan, runner: Runner | None = None) -> DatasetURI:
    """Run the tasks of `plan` up to the prepared dataset."""
    runner, raw, groups = runner or InProcessRunner(), ingested(plan, runner), plan.preprocess.embeddings
    return preprocess.fn(raw, plan.recipe.split, runner, root=plan.root, embeddings=groups)


def evaluated(plan: Plan, runner: Runner | None = None) -> EvaluationURI:
    """Run the tasks of `plan` that come before the gate."""
    runner, recipe, workers = runner or InProcessRunner(), plan.recipe, plan.train.workers
    images, start = prepared(plan, runner), plan.train.start
    if plan.embed:
        embed.fn(plan.embed, runner)
    fitted, own, needs = plan.train.embeddings, plan.predict.embeddings, plan.predict_needs
    checkpoint = train.fn(images, recipe, runner, start=start, embeddings=fitted, workers=workers)
    if plan.embed_by_model:
        embed.fn(plan.embed_by_model, runner)
    return evaluate.fn(predict.fn(checkpoint, images, runner, split="test", embeddings=own, needs=needs))


def run(plan: Plan, runner: Runner | None = None) -> Decision:
    """Run every task of `plan`, as the flow does."""
    runner, recipe, model = runner or InProcessRunner(), plan.recipe, plan.registered_model
    evaluation, checkpoint = evaluated(plan, runner), plan.train.target
    decision = promote.fn(checkpoint, evaluation, model, recipe.gate, runner, judge_only=plan.judge_only)
    report.fn(evaluation, decision, recipe, model, register_as=plan.register_as, command=plan.command)
    return decision
