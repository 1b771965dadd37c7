"""What batch prediction is asked for, resolved and checked before anything slow starts."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage import manifest, registry
from storage.uri import CheckpointURI, DatasetURI, PredictionsURI, Root, check_name, parse_root
from tasks.given import check_committed
from tasks.jobs.scale import Workers, limits
from tasks.plan import check_numbers, check_root, is_committed, predictions_of

if TYPE_CHECKING:
    from tasks.stage import Stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """One checkpoint and one dataset; the same request gives the same URI."""

    root: Root
    """Storage root of the results."""
    checkpoint: CheckpointURI
    """The model, `champion` resolved."""
    dataset: DatasetURI
    """The rows."""
    split: str | None
    """One split, or none for all."""
    workers: Workers
    """As asked; elastic ones are refused."""
    deadline_s: float
    """Seconds after which the job is ended."""

    def is_done(self) -> bool:
        """Whether the predictions are committed already."""
        return is_committed(predictions_of(self.root, self.checkpoint, self.dataset, split=self.split))


def resolve(
    *, storage: str, model: str, dataset: str, split: str | None, workers: Workers, deadline_minutes: float
) -> BatchRequest:
    """The checked request; raises `ValueError` naming the option, the value and the next step."""
    check_numbers(workers=workers, deadline_minutes=deadline_minutes)
    if limits(workers):
        raise ValueError(f"--workers must be one number for prediction, got {workers!r}: only training is elastic")
    root = check_root(storage)
    data = DatasetURI(parse_root(dataset, option="--dataset"))
    made = check_committed("--dataset", data, kinds=("raw", "prepared"))
    splits = sorted({file.split for file in made.files if file.split and file.split != "quarantine"})
    if split is not None and split not in splits:
        raise ValueError(f"--split must be one of {', '.join(splits)}, got {split!r}")
    checkpoint = (
        _champion(root, model, data)
        if model.partition(":")[0] == "champion"
        else CheckpointURI(parse_root(model, option="--model"))
    )
    check_committed("--model", checkpoint, kinds=("checkpoint",))
    return BatchRequest(
        root=root,
        checkpoint=checkpoint,
        dataset=data,
        split=split,
        workers=workers,
        deadline_s=deadline_minutes * 60,
    )


def summarize(request: BatchRequest, predictions: PredictionsURI, stages: Sequence["Stage"]) -> dict[str, Any]:
    """One JSON document that names the URIs and the number of rows."""
    return {
        "uris": {"checkpoint": request.checkpoint, "dataset": request.dataset, "predictions": predictions},
        "rows": manifest.load(predictions).rows,
        "stages": [
            {"name": stage.name, "seconds": round(stage.seconds, 3), "reused": stage.reused, "uri": stage.uri}
            for stage in stages
        ],
    }


def _champion(root: Root, model: str, dataset: DatasetURI) -> CheckpointURI:
    name = check_name(model.partition(":")[2] or _data_set(dataset), field="--model champion:NAME")
    champion = registry.champion(root, name)
    if champion is None:
        raise ValueError(f"--model: {root} has no champion of {name!r}; run the pipeline first, or name a checkpoint")
    return champion


def _data_set(dataset: DatasetURI) -> str:
    """The name of the data set that `dataset` was made from; raises `ValueError` when it cannot be known."""
    made = manifest.load(dataset)
    if made.kind != "raw":
        raw = DatasetURI(parse_root(made.parents.get("raw", ""), option="--dataset: what it was made from"))
        made = check_committed("--dataset: what it was made from", raw, kinds=("raw",))
    if "data" not in made.parameters:
        raise ValueError(f"--dataset: {dataset} does not say which data set it is of; give --model champion:NAME")
    return str(made.parameters["data"])
