"""The flow "mnist" and its siblings: from images to a promoted model and its report. As a script, the command line."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works from anywhere, installed or not

if __name__ == "__main__":
    try:
        from flows.cli import main  # checks the command line before anything slow is imported
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: {error.name} is not installed: `make install`, then `. .venv/bin/activate`") from None

    raise SystemExit(main())

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from tasks import plan as planning
from tasks.cluster import session
from tasks.download import download
from tasks.evaluate import evaluate
from tasks.ingest import ingest
from tasks.learning import recipes
from tasks.learning.sources import mirror_address
from tasks.options import as_json
from tasks.predict import predict
from tasks.preprocess import preprocess
from tasks.promote import promote
from tasks.report import report
from tasks.stage import collected
from tasks.summary import outcome, summarize
from tasks.train import train

_RecipeName = Annotated[
    str, Field(json_schema_extra={"anyOf": [{"enum": recipes.known()}, {"pattern": r"\.py:[A-Za-z_][A-Za-z0-9_]*$"}]})
]


@flow(name="mnist", **as_json)
def mnist(
    recipe: _RecipeName = "mnist-resnet18",
    storage: str | None = None,
    source: list[str] | None = None,
    data: str | None = None,
    workers: int | str | None = None,
    settings: dict[str, Any] | None = None,
    refresh: bool = False,
    deadline_minutes: float = 24 * 60,
    stall_minutes: float = 10,
    patience_minutes: float = 10,
) -> Any:
    """Train a model, evaluate it and promote it if it is better; what is done already is found, not redone.

    Args:
        recipe: What to train on what, such as mnist-resnet18, or path.py:function on the worker.
        storage: Where all results lie: a folder or s3://bucket/prefix; empty: the worker's $PIPELINE_STORAGE or ./data.
        source: Mirrors to try before the data set's own: http(s) addresses or folders.
        data: A folder or s3://bucket/prefix of images (train/<class>/*.png, ...) or of Parquet, or the URI of a raw
            dataset that is there already; empty: download the recipe's.
        workers: Training workers; empty: as many as there are GPUs, else one; 0: the flow's own process, without Ray;
            MIN:MAX: as many as the cluster has at the time.
        settings: Fields of the recipe to change, such as {"epochs": 5}.
        refresh: Do everything again, even if its result is there.
        deadline_minutes: After how long one stage is given up.
        stall_minutes: After how long without progress a training worker is started again.
        patience_minutes: For how long mirrors are tried again while none of them can be reached.
    """
    plan = planning.make(
        storage=storage or planning.default_storage(),
        recipe=recipes.override(recipes.load(recipe), settings or {}),
        workers=workers,
        data=data,
        refresh=refresh,
        deadline_minutes=deadline_minutes,
        stall_minutes=stall_minutes,
        patience_minutes=patience_minutes,
    )
    sources = [mirror_address(one) for one in source or []]
    wanted = plan.needs_ray()
    with collected() as stages, session(plan.root, wanted=wanted, workers=workers, needs=plan.needs) as cluster:
        files = download(plan, sources)
        raw = ingest(files, plan, cluster)
        prepared = preprocess(raw, plan, cluster)
        checkpoint = train(prepared, plan, cluster)
        predictions = predict(checkpoint, prepared, plan, cluster)
        evaluation = evaluate(predictions, plan)
        decision = promote(checkpoint, evaluation, plan, cluster)
        page = report(checkpoint, predictions, evaluation, decision, plan)
    return outcome(summarize(plan, files, stages, decision, page))


# The same flow under the name of another data set, so that each has its own runs and deployments.
fashion_mnist = mnist.with_options(name="fashion-mnist")
cifar10 = mnist.with_options(name="cifar10")
images = mnist.with_options(name="images")
