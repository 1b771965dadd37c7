"""The flow for batch prediction: apply a model, or the champion, to a dataset."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # Prefect loads this file from anywhere

if __name__ == "__main__":
    raise SystemExit("error: this file is no command; use: data-to-model predict")

from prefect import flow

from flows.cli.commands import PredictOptions
from flows.cli.options import described
from flows.cli.preflight import checked_prediction
from tasks.ingest import ingest
from tasks.orchestration.prefect_options import flow_options, refused
from tasks.orchestration.stage import using
from tasks.orchestration.summary import outcome, summarize_prediction
from tasks.planning.make_plan import default_storage
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
    max_distance: float | None = None,
    no_drift: bool = False,
    workers: int | None = None,
    cores: int | None = None,
    stage_timeout: str = "24h",
) -> Any:
    """Predict every row of a dataset, or every image of a folder, exactly once; existing predictions are reused."""
    options = locals() | {"storage": storage or default_storage()}
    try:
        request = checked_prediction(PredictOptions(**options))
    except ValueError as error:
        return refused(error)
    with (
        using(request.root, request.uses) as steps,
        session(wanted=request.needs_ray, workers=request.needs.workers) as runner,
    ):
        stage, needs, limits = request.predict, request.needs, request.limits
        if request.ingest:
            ingest(request.ingest.made_from, request.ingest.data, runner, limits=limits)
        model, root, part, own = stage.checkpoint, request.root, stage.split, stage.embeddings
        predictions = predict_rows(
            model, stage.dataset, runner, split=part, embeddings=own, root=root, needs=needs, limits=limits
        )
        return outcome(summarize_prediction(request, predictions, steps))
