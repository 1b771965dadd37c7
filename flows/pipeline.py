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

from prefect import Flow, flow
from prefect.runtime import flow_run

from flows.cli.options import RunOptions, described
from flows.cli.preflight import check_and_plan
from tasks.download import download
from tasks.evaluate import evaluate
from tasks.ingest import ingest
from tasks.learning import sources
from tasks.orchestration.prefect_options import flow_options, planned, refused, unvisited
from tasks.orchestration.stage import using
from tasks.orchestration.summary import outcome, summarize
from tasks.planning.data_option import default_recipe
from tasks.planning.make_plan import default_storage
from tasks.planning.plan import Plan
from tasks.predict import predict
from tasks.preprocess import preprocess
from tasks.promote import promote
from tasks.report import report
from tasks.runners.session import session
from tasks.train import train


@flow(name="mnist", **flow_options)
@partial(described, RunOptions)
def mnist(
    recipe: str | None = None,
    storage: str | None = None,
    mirror: list[str] | None = None,
    data: str | None = None,
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
        options["recipe"] = recipe or default_recipe(data, flow=str(flow_run.flow_name), storage=options["storage"])
        plan = check_and_plan(RunOptions(**options))
    except ValueError as error:
        return refused(error)
    return run(plan)


def run(plan: Plan) -> Any:
    """Carry out `plan`, one line per task, and return the run's outcome."""
    with (
        using(plan.root, plan.uses) as stages,
        session(wanted=plan.needs_ray, workers=plan.train.workers) as runner,
    ):
        files = download(plan.files, plan.train.weights, plan.download, plan.timeouts)
        raw = ingest(files, plan.raw, unvisited(plan.ingest), plan.timeouts, runner)
        prepared = preprocess(raw, plan.prepared, plan.preprocess, plan.timeouts, runner)
        checkpoint = train(prepared, plan.checkpoint, plan.train, plan.timeouts, runner)
        predictions = predict(checkpoint, prepared, plan.predictions, plan.predict, plan.timeouts, runner)
        evaluation = evaluate(predictions, plan.evaluation, plan.timeouts)
        decision = promote(checkpoint, evaluation, plan.promote, plan.timeouts, runner)
        page = report(checkpoint, predictions, evaluation, decision, plan.report, plan.timeouts)
        return outcome(summarize(plan, files, stages, decision, page))


# The same flow under one name per source, so that each source has its own runs and deployments.
cifar10 = mnist.with_options(name="cifar10")
images = mnist.with_options(name="images")


def flow_of(plan: Plan) -> Flow[..., Any]:
    """Return the flow named after the source of `plan`, which it carries out."""
    siblings = {"cifar10": cifar10, sources.USER_IMAGES: images}
    return planned(siblings.get(plan.recipe.data.source, mnist), lambda: run(plan))
