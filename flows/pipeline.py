"""The flow `mnist` and its siblings, from images to a promoted model and its report; also their command line."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works from anywhere, installed or not

if __name__ == "__main__":
    try:
        from flows.cli import app  # checks the command line before anything slow is imported
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: {error.name} is not installed: `make install`, then `. .venv/bin/activate`") from None

    raise SystemExit(app.main(name="run"))

from prefect import flow
from prefect.runtime import flow_run

from flows.cli.commands import RunOptions
from flows.cli.options import described
from flows.cli.preflight import checked
from storage.kinds import DatasetURI
from storage.uses import FORGETTING
from tasks.download import download
from tasks.embed import embed
from tasks.evaluate import evaluate
from tasks.images.option import default_recipe
from tasks.ingest import ingest
from tasks.orchestration.prefect_options import flow_options, refused
from tasks.orchestration.stage import using
from tasks.orchestration.summary import outcome, summarize
from tasks.orchestration.tracking import track
from tasks.planning.make_plan import default_storage
from tasks.planning.plan import Plan
from tasks.predict import predict
from tasks.preprocess import preprocess
from tasks.promote import promote
from tasks.report import report
from tasks.runners.runner import Runner
from tasks.runners.session import session
from tasks.train import train


@flow(name="mnist", **flow_options)
@partial(described, RunOptions)
def mnist(
    recipe: str | None = None,
    storage: str | None = None,
    mirror: list[str] | None = None,
    data: str | None = None,
    labels: str | None = None,
    workers: int | None = None,
    cores: int | None = None,
    settings: dict[str, Any] | None = None,
    register_as: str | None = None,
    judge_only: bool = False,
    refresh: bool = False,
    stage_timeout: str = "24h",
    stall_timeout: str = "10m",
) -> Any:
    """Train a model, evaluate it and promote it if it passes the gate; existing results are reused."""
    options = locals() | {"storage": storage or default_storage(), "mirror": mirror or [], "settings": settings or {}}
    try:
        options["recipe"] = recipe or default_recipe(data, flow=str(flow_run.flow_name))
        plan = checked(RunOptions(**options))
    except ValueError as error:
        return refused(error)
    return run(plan)


def run(plan: Plan) -> Any:
    """Carry out `plan`, one line per task, and return the run's outcome."""
    recipe, limits, needs = plan.recipe, plan.limits, plan.predict_needs
    marker = FORGETTING if plan.replaces else ""
    with (
        using(plan.root, plan.uses, marker=marker) as steps,
        session(wanted=plan.needs_ray, workers=plan.train.workers) as runner,
    ):
        if plan.weights:
            download(plan.weights, limits=limits, name="download weights")
        files = download(plan.download, limits=limits) if plan.download else None
        prepared = prepare(plan, runner)
        start, workers, cores = plan.train.start, plan.train.workers, plan.train.cores
        embeddings = embed(plan.embed, runner, needs=needs, limits=limits) if plan.embed else None
        checkpoint = train(
            prepared, recipe, runner, start=start, embeddings=embeddings, workers=workers, cores=cores, limits=limits
        )
        if plan.embed_by_model:
            embed(plan.embed_by_model, runner, needs=needs, limits=limits, name="embed by model")
        own = plan.predict.embeddings
        predictions = predict(checkpoint, prepared, runner, split="test", embeddings=own, needs=needs, limits=limits)
        evaluation = evaluate(predictions, limits=limits)
        model, judge_only, replaces = plan.registered_model, plan.judge_only, plan.replaces
        decision = promote(
            checkpoint,
            evaluation,
            model,
            recipe.gate,
            runner,
            judge_only=judge_only,
            replaces=replaces,
            needs=needs,
            limits=limits,
        )
        register_as, command = plan.register_as, plan.command
        page = report(evaluation, decision, recipe, model, register_as=register_as, command=command, limits=limits)
        summary = summarize(plan, files, steps, decision, page)
    track(plan.root, model)
    return outcome(summary)


def prepare(plan: Plan, runner: Runner) -> DatasetURI:
    """Carry out the tasks of `plan` from what was downloaded to a prepared dataset."""
    recipe, limits, raw, groups = plan.recipe, plan.limits, plan.preprocess.raw, None
    if plan.ungrouped:
        again = plan.ungrouped.refresh
        ingest(plan.ungrouped.made_from, recipe.data, runner, refresh=again, limits=limits)
    if plan.grouping:
        groups = embed(plan.grouping, runner, needs=plan.predict_needs, limits=limits, name="embed to group")
    if plan.ingest:
        made_from, group, again = plan.ingest.made_from, recipe.split.group, plan.ingest.refresh
        raw = ingest(made_from, recipe.data, runner, group=group, embeddings=groups, refresh=again, limits=limits)
    split, again = recipe.split, plan.preprocess.refresh
    return preprocess(raw, split, runner, root=plan.root, embeddings=groups, refresh=again, limits=limits)


# The same flow under one name per source, so that each source has its own runs and deployments.
cifar10 = mnist.with_options(name="cifar10")
images = mnist.with_options(name="images")
