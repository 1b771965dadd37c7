"""The flow `explain`: trains the data of each of two runs with the recipe of the other, and again with other seeds."""

from typing import Any

from prefect import Flow

from tasks.comparing.attribution import Request, explain
from tasks.download import download
from tasks.evaluate import evaluate
from tasks.orchestration.prefect_options import flow_options
from tasks.orchestration.stage import using
from tasks.predict import predict
from tasks.preprocess import preprocess
from tasks.runners.session import session
from tasks.train import train


def run(request: Request) -> Any:
    """Carry out the plans of `request` that are missing, and return what explains the difference."""
    uses = [uri for plan in request.plans for uri in plan.uses]
    needs = request.missing[-1].needs
    with (
        using(request.root, uses),
        session(request.root, wanted=request.needs_ray, workers=request.workers, needs=needs) as runner,
    ):
        for plan in request.missing:
            download(plan.files, plan.weights, plan.download)
            prepared = preprocess(plan.raw, plan.prepared, plan.preprocess, runner)
            checkpoint = train(prepared, plan.checkpoint, plan.train, runner)
            predictions = predict(checkpoint, prepared, plan.predictions, plan.predict, runner)
            evaluate(predictions, plan.evaluation, plan.timeouts)
        return explain(request)


def flow_of(request: Request) -> Flow[..., Any]:
    """Return the flow that carries out `request`."""

    def explain(a: str, b: str, storage: str, seeds: int, workers: int | None) -> Any:
        return run(request)

    return Flow(explain, name="explain", **flow_options)
