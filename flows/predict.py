"""The flow for batch prediction: apply a model, or the champion, to a dataset; also its command line."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works from anywhere, installed or not

if __name__ == "__main__":
    try:
        from flows.cli import app  # checks the command line before anything slow is imported
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: {error.name} is not installed: `make install`, then `. .venv/bin/activate`") from None

    raise SystemExit(app.main(name="predict"))

from prefect import Flow, flow

from flows.cli.options import PredictOptions
from flows.cli.preflight import check_prediction
from tasks.ingest import ingest
from tasks.orchestration.prefect_options import flow_options, planned, refused
from tasks.orchestration.stage import using
from tasks.orchestration.summary import outcome, summarize_prediction
from tasks.planning.make_plan import default_storage
from tasks.planning.predict_request import BatchRequest
from tasks.predict import predict as predict_rows
from tasks.runners.session import session


@flow(name="predict", **flow_options)
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
    """Predict every row of a dataset, or every image of a folder, exactly once; existing predictions are reused.

    Args:
        data: URI of a dataset, raw or prepared; or new images: a flat or nested folder, a file, or
            s3://bucket/prefix, with images or Parquet, with or without labels. They are resized as in training.
        model: URI of a checkpoint, or champion: that of the dataset's source (champion:NAME: that of another
            registered model); for new images that of their folder, else the only one, or the only one trained on own
            images.
        storage: Storage root with the registry and the results; empty: the worker's $PIPELINE_STORAGE or ./data.
        split: Only this split of a dataset; empty: all.
        min_confidence: Leave the class empty where its probability is lower, such as 0.92; empty: every row gets one.
        workers: Number of processes that predict; empty: one per GPU, without GPUs one, or on a cluster one per node;
            0: the flow's own process, without Ray.
        cores: Number of the machine's cores to use, leaving the rest to other runs; not with RAY_ADDRESS; empty: all,
            with runs taking turns.
        stage_timeout: Abort if the prediction takes longer, such as 30s, 10m, 2h or 1d.
    """
    try:
        request = check_prediction(
            PredictOptions(
                storage=storage or default_storage(),
                model=model,
                data=data,
                split=split,
                min_confidence=min_confidence,
                workers=workers,
                cores=cores,
                stage_timeout=stage_timeout,
            )
        )
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
            ingest(None, request.dataset, request.ingest, request.timeouts, runner)
        predictions = predict_rows(
            request.checkpoint, request.dataset, request.predictions, request.predict, request.timeouts, runner
        )
        return outcome(summarize_prediction(request, predictions, stages))


def flow_of(request: BatchRequest) -> Flow[..., Any]:
    """Return the flow that carries out `request`."""
    return planned(predict, lambda: run(request))
