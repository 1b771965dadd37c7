"""The flow for batch prediction: apply a model, or the champion, to a dataset."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # Prefect loads this file from anywhere

if __name__ == "__main__":
    raise SystemExit("error: this file is no command; use: data-to-model predict")

from prefect import Flow, flow

from flows.cli.options import PredictOptions, described
from flows.cli.preflight import check_prediction
from tasks.ingest import ingest
from tasks.orchestration.prefect_options import flow_options, planned, refused, unvisited
from tasks.orchestration.stage import using
from tasks.orchestration.summary import outcome, summarize_prediction
from tasks.planning.make_plan import default_storage
from tasks.planning.predict_request import BatchRequest
from tasks.predict import predict as predict_rows
from tasks.runners.session import session


@flow(name="predict", **flow_options)
@partial(described, PredictOptions)
def predict(
    data: str,
    model: str = "champion",
    storage: str | None = None,
    split: str | None = None,
    min_confidence: float | None = None,
    workers: int | None = None,
    cores: int | None = None,
    stage_timeout: str = "24h",
) -> Any:
    """Predict every row of a dataset, or every image of a folder, exactly once; existing predictions are reused."""
    options = locals() | {"storage": storage or default_storage()}
    try:
        request = check_prediction(PredictOptions(**options))
    except ValueError as error:
        return refused(error)
    return run(request)


def run(request: BatchRequest) -> Any:
    """Carry out `request`, and return the run's outcome."""
    with (
        using(request.root, [request.checkpoint, request.dataset]) as stages,
        session(wanted=request.needs_ray, workers=request.predict.workers) as runner,
    ):
        if request.ingest:
            ingest(None, request.dataset, unvisited(request.ingest), request.timeouts, runner)
        predictions = predict_rows(
            request.checkpoint, request.dataset, request.predictions, request.predict, request.timeouts, runner
        )
        return outcome(summarize_prediction(request, predictions, stages))


def flow_of(request: BatchRequest) -> Flow[..., Any]:
    """Return the flow that carries out `request`."""
    return planned(predict, lambda: run(request))
