"""Requests that use a trained model, batch prediction and export: checked before anything slow starts."""

import dataclasses
import importlib.util
import os
import re

from storage import access, files, manifest
from storage.admin import catalog
from storage.kinds import CHECKPOINT, CheckpointURI, DatasetURI
from storage.uri import URI, Root
from tasks.images import user_images
from tasks.images.option import ingest_stage
from tasks.learning import images, sources, user_code
from tasks.learning.recipes import Data, flat
from tasks.planning import model_check
from tasks.planning.make_plan import check_root, check_workers
from tasks.planning.plan import uses
from tasks.resources.needs import Limits, Needs, Workers
from tasks.stages import Export, Ingest, Predict


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """A checked request for batch prediction; the same request gives the same URIs."""

    root: Root
    ingest: Ingest | None
    """How the dataset is made from the user's images; None if it exists."""
    predict: Predict
    needs: Needs
    needs_ray: bool
    """Whether the predictions are not committed yet."""
    limits: Limits
    min_confidence: float | None
    """Probability below which the summary counts no class; None: every row has one."""
    max_distance: float | None
    """Distance above which the summary counts no class; None: every row has one."""
    no_drift: bool
    """Whether new images are not compared with the test rows of the model."""

    @property
    def uses(self) -> list[URI]:
        return uses([self.ingest, self.predict])


def resolve_prediction(
    *,
    storage: str,
    model: str,
    data: str,
    split: str | None,
    workers: Workers,
    min_confidence: float | None = None,
    max_distance: float | None = None,
    no_drift: bool = False,
    limits: Limits = Limits(),
) -> BatchRequest:
    """Check a request for batch prediction; raise `ValueError` naming the option, the value and the next step."""
    check_workers(workers)
    split = split or None  # a form's empty field
    if min_confidence is not None and not 0 < min_confidence <= 1:
        percent = f"; for {min_confidence:g}% use {min_confidence / 100:g}" if 1 < min_confidence <= 100 else ""
        raise ValueError(f"--min-confidence must be above 0 and at most 1, got {min_confidence:g}{percent}")
    if max_distance is not None and not 0 <= max_distance <= 2:
        raise ValueError(f"--max-distance must be at least 0 and at most 2, got {max_distance}")
    root = check_root(storage)
    dataset = DatasetURI(catalog.named(root, data, option="--data"))
    ingest, is_new = None, are_user_images(dataset)
    recorded = None if is_new else catalog.committed(dataset, option="--data", kinds=("raw", "prepared"))
    if recorded is not None and split is not None:
        splits = {file.split for file in recorded.files if file.split and file.rows} - {"quarantine"}
        if split not in splits:
            names = ", ".join(sorted(splits)) or "those with rows"
            raise ValueError(f"--split must be one of {names}, got {split!r}")
    checkpoint = CheckpointURI(catalog.named(root, model, option="--model"))
    catalog.committed(checkpoint, option="--model", kinds=("checkpoint",))
    if recorded is None:
        ingest = _new_images(root, dataset, checkpoint, split=split)
        dataset = ingest.target
    else:
        expected = manifest.load(checkpoint).statistics_of(CHECKPOINT).model.image_shape
        if (shape := images.shape_of(recorded.columns["metadata"])) != expected:
            raise ValueError(
                f"--data: its images have shape {shape}, but model {checkpoint} expects {expected}; choose another "
                "--data or --model"
            )
    user_code.check_listed()
    predict = Predict.of(checkpoint, dataset, split=split, root=root)
    if max_distance is not None and not predict.embeddings:
        raise ValueError(
            f"--max-distance needs embeddings of the model's own images, but {checkpoint} has none; omit it, or train "
            "images-probe on your own images"
        )
    needs_ray = not manifest.is_committed(predict.target)
    if needs_ray:
        model_check.check_code(checkpoint, option="--model")
    return BatchRequest(
        root=root,
        ingest=ingest,
        predict=predict,
        needs=Needs(workers=workers),
        needs_ray=needs_ray,
        limits=limits,
        min_confidence=min_confidence,
        max_distance=max_distance,
        no_drift=no_drift,
    )


def backbone_of(checkpoint: CheckpointURI) -> tuple[str, URI]:
    """Return architecture and weights of a model's backbone: if it is a probe, the published ones, if still there."""
    trained = manifest.load(checkpoint)
    recorded, start = trained.statistics_of(CHECKPOINT), URI(checkpoint)
    if "embeddings" in trained.parents and flat(recorded.recipe)["start"] == "pretrained":
        weights = trained.parent("weights", of=checkpoint)
        start = weights if manifest.is_committed(weights) else start
    return recorded.model.model, start


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
        raise user_images.nothing_at(uri, expected=expected) from None
    return not manifest.is_committed(uri)


def _new_images(root: Root, uri: DatasetURI, checkpoint: CheckpointURI, *, split: str | None) -> Ingest:
    """Return how the user's images at `uri` become a dataset with the shape and the classes of the model.

    All models that share these share the dataset. Raises `ValueError` if the model of `checkpoint` cannot use the
    images.
    """
    if split is not None:
        raise ValueError(
            f"--split applies to datasets, got {split!r} for new images; use their folder instead: {uri}/{split}"
        )
    user_images.check_apart(root, uri)
    trained = manifest.load(checkpoint).statistics_of(CHECKPOINT)
    height, width, channels = trained.model.image_shape
    if height != width:
        raise ValueError(
            f"--model expects images of {height} x {width} pixels; new images can only be resized to squares"
        )
    listing = user_images.write(root, user_images.find_new(URI(uri), classes=trained.model.classes))
    limit = flat(trained.recipe)["max_megapixels"]
    data = Data(source=sources.USER_IMAGES, image_size=height, channels=1 if channels == 1 else 3, max_megapixels=limit)
    return ingest_stage(listing, data)


def resolve_export(*, storage: str, model: str) -> Export:
    """Check a request for an export, as `resolve_prediction` does one for predictions."""
    root = check_root(storage)
    checkpoint = CheckpointURI(catalog.named(root, model, option="model"))
    trained = catalog.committed(checkpoint, option="model", kinds=("checkpoint",))
    prepared = DatasetURI(trained.parent("prepared", of=checkpoint))
    request = Export(root=root, checkpoint=checkpoint, prepared=prepared)
    if manifest.is_committed(request.target):
        return request
    recorded = manifest.find(prepared)
    if not recorded or not any(file.rows for file in recorded.split("test")):
        raise ValueError(
            f"model: an export of {checkpoint} cannot be proven, since {prepared} "
            f"{'has no test rows' if recorded else 'was deleted'}; run its pipeline again"
        )
    user_code.check_listed()
    model_check.check_code(checkpoint, option="model")
    require_packages("export", "onnx", "onnxruntime", "onnxscript")
    return request


def require_packages(command: str, *names: str) -> None:
    """Raise `ValueError` with the next step if packages that `command` needs are not installed."""
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise ValueError(f"{command} needs {', '.join(missing)}; run: pip install {' '.join(missing)}")
