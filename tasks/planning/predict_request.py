"""Request for batch prediction, resolved and checked before anything slow starts."""

import dataclasses
import os
import re
from typing import Any

from storage import access, files, kinds, manifest
from storage.admin import catalog
from storage.uri import URI, CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.images import user_images
from tasks.images.user_images import UserImages
from tasks.jobs.deadline import deadline
from tasks.learning import images, user_code
from tasks.learning.recipe import MAX_MEGAPIXELS, flat
from tasks.planning import model_check
from tasks.planning.data_option import check_committed
from tasks.planning.make_plan import check_root, check_workers
from tasks.planning.plan import IngestParameters, Timeouts
from tasks.planning.result_uris import predictions_of, result_of
from tasks.resources.scaling import Workers
from tasks.stages import PredictParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """A checked request for batch prediction; the same request gives the same URIs."""

    root: Root
    checkpoint: CheckpointURI
    dataset: DatasetURI
    predictions: PredictionsURI
    needs_ray: bool
    """Whether the predictions are not committed yet."""
    ingest: IngestParameters | None
    """How `dataset` is made from the user's images; None if it exists."""
    predict: PredictParameters
    min_confidence: float | None
    """Probability below which the summary counts a row without its class; None: it counts every row."""
    timeouts: Timeouts


def resolve(
    *,
    storage: str,
    model: str,
    data: str,
    split: str | None,
    workers: Workers,
    min_confidence: float | None = None,
    stage_timeout_s: float = 24 * 3600.0,
) -> BatchRequest:
    """Check and resolve a request.

    Raises `ValueError` naming the option, the value and the next step, and `DeadlineExceeded` if the checks take longer
    than the deadline.
    """
    check_workers(workers)
    split = split or None  # a form's empty field
    if min_confidence is not None and not 0 < min_confidence <= 1:
        raise ValueError(f"--min-confidence must be above 0 and at most 1, got {min_confidence}")
    with deadline(stage_timeout_s):
        root = check_root(storage)
        dataset = DatasetURI(catalog.named(root, data, option="--data"))
        ingest, is_new = None, are_user_images(dataset)
        recorded = None if is_new else check_committed("--data", dataset, kinds=("raw", "prepared"))
        if recorded is not None and split is not None:
            splits = {file.split for file in recorded.files if file.split and file.rows} - {"quarantine"}
            if split not in splits:
                names = ", ".join(sorted(splits)) or "those with rows"
                raise ValueError(f"--split must be one of {names}, got {split!r}")
        checkpoint = CheckpointURI(catalog.named(root, model, option="--model"))
        check_committed("--model", checkpoint, kinds=("checkpoint",))
        if recorded is None:
            new, values = _new_images(root, dataset, checkpoint, split=split)
            ingest = IngestParameters(name=new.name, values=values, user_images=new)
            dataset = result_of(kinds.RAW, root, name=new.name, parameters=values | {"files": new.digest})
        else:
            expected = manifest.load(checkpoint).statistics_of(kinds.CHECKPOINT).model.image_shape
            if (shape := images.shape_of(recorded.columns["metadata"])) != expected:
                raise ValueError(
                    f"--data: its images have shape {shape}, but model {checkpoint} expects {expected}; choose another "
                    "--data or --model"
                )
        user_code.check_listed()
        predictions = predictions_of(root, checkpoint, dataset, split=split)
        needs_ray = not manifest.is_committed(predictions)
        if needs_ray:
            model_check.check_code(checkpoint, option="--model")
    return BatchRequest(
        root=root,
        checkpoint=checkpoint,
        dataset=dataset,
        predictions=predictions,
        needs_ray=needs_ray,
        ingest=ingest,
        predict=PredictParameters(split=split, workers=workers),
        min_confidence=min_confidence,
        timeouts=Timeouts(stage_s=stage_timeout_s),
    )


def are_user_images(uri: DatasetURI) -> bool:
    """Return whether `uri` is images or Parquet of the user's, not a dataset, committed or unfinished.

    Raises `ValueError` if nothing exists there.
    """
    if re.search(r"/datasets/(raw|prepared)/[^/]+-[0-9a-f]{12}$", uri):  # if not committed, an unfinished dataset
        return False
    if not uri.is_s3 and os.path.isfile(uri):
        return True
    try:
        access.check_readable(uri, option="--data")
    except FileNotFoundError:
        if uri.is_s3 and files.exists(uri):
            return True
        expected = f"{user_images.TO_PREDICT}, or the URI of a dataset"
        raise user_images.nothing_at(uri, option="--data", expected=expected) from None
    return not manifest.is_committed(uri)


def _new_images(
    root: Root, uri: DatasetURI, checkpoint: CheckpointURI, *, split: str | None
) -> tuple[UserImages, dict[str, Any]]:
    """Return the user's images at `uri`, and what besides their files determines their raw dataset.

    That is the shape and the classes of the model; all models that share these share the dataset. Raises `ValueError`
    if the model of `checkpoint` cannot use the images.
    """
    if split is not None:
        raise ValueError(
            f"--split applies to datasets, got {split!r} for new images; use their folder instead: {uri}/{split}"
        )
    user_images.check_apart(root, uri, option="--data")
    trained = manifest.load(checkpoint).statistics_of(kinds.CHECKPOINT)
    height, width, channels = trained.model.image_shape
    if height != width:
        raise ValueError(
            f"--model expects images of {height} x {width} pixels; new images can only be resized to squares"
        )
    new = user_images.find_new(URI(uri), classes=trained.model.classes)
    values = {"data": new.name, "ingest": user_images.VERSION, "classes": list(trained.model.classes)}
    limit = flat(trained.recipe)["max_megapixels"]
    values |= {"max_megapixels": limit} if limit != MAX_MEGAPIXELS else {}
    return new, values | {"image_size": height, "channels": channels}
