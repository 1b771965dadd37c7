"""Batch prediction on its own: a model (or the champion) and a dataset in, predictions out."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works from anywhere, installed or not

if __name__ == "__main__":
    try:
        from flows.cli import main_predict  # checks the command line before anything slow is imported
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: {error.name} is not installed: `make install`, then `. .venv/bin/activate`") from None

    raise SystemExit(main_predict())

from typing import Any

from prefect import flow

from tasks import batch
from tasks.cluster import session
from tasks.options import as_json
from tasks.plan import default_storage
from tasks.predict import predict_batch
from tasks.stage import collected
from tasks.summary import outcome


@flow(name="predict", **as_json)
def predict(
    dataset: str,
    model: str = "champion",
    storage: str | None = None,
    split: str | None = None,
    workers: int | str | None = None,
    deadline_minutes: float = 24 * 60,
) -> Any:
    """Predict every row of a dataset, labels or not, exactly once; predictions that are there already are found.

    Args:
        dataset: URI of a dataset, raw or prepared.
        model: URI of a checkpoint, or champion: the one in charge of the dataset's data set (champion:NAME of another).
        storage: Where the registry and the results lie; empty: the worker's $PIPELINE_STORAGE or ./data.
        split: Only this split; empty: all.
        workers: Processes that predict; empty: as many as there are GPUs, else one; 0: the flow's own, without Ray.
        deadline_minutes: After how long it is given up.
    """
    request = batch.resolve(
        storage=storage or default_storage(),
        model=model,
        dataset=dataset,
        split=split,
        workers=workers,
        deadline_minutes=deadline_minutes,
    )
    with collected() as stages, session(request.root, wanted=not request.is_done(), workers=workers) as cluster:
        predictions = predict_batch(request, cluster)
    return outcome(batch.summarize(request, predictions, stages))
