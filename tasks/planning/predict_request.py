"""Request for batch prediction, resolved and checked before anything slow starts."""

import dataclasses

from storage import manifest
from storage.admin import champions
from storage.uri import URI, CheckpointURI, DatasetURI, Root, check_name, parse_root
from tasks.jobs.deadline import deadline
from tasks.learning import images, user_code
from tasks.planning import model_check, new_images
from tasks.planning.data_option import check_committed
from tasks.planning.make_plan import check_root, check_workers
from tasks.planning.result_uris import predictions_of
from tasks.planning.user_images import UserImages
from tasks.resources.scaling import Workers


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """A checked request with one checkpoint and one dataset; the same request gives the same URI."""

    root: Root
    checkpoint: CheckpointURI
    dataset: DatasetURI
    user_images: UserImages | None = None
    """User images from which `dataset` is made; None if `dataset` exists."""
    split: str | None
    """The split to predict; None: all."""
    workers: Workers
    """Number of workers as requested."""
    stage_timeout_s: float
    """Seconds after which the job is aborted."""
    stall_timeout_s: float = 600.0
    """Seconds that a cluster has to add nodes."""

    def is_done(self) -> bool:
        """Return whether the predictions are already committed."""
        return manifest.is_committed(predictions_of(self.root, self.checkpoint, self.dataset, split=self.split))


def resolve(
    *,
    storage: str,
    model: str,
    data: str,
    split: str | None,
    workers: Workers,
    stage_timeout_s: float = 24 * 3600.0,
) -> BatchRequest:
    """Check and resolve a request.

    Raises `ValueError` naming the option, the value and the next step, and `DeadlineExceeded` if the checks take longer
    than the deadline.
    """
    check_workers(workers)
    split = split or None  # a form's empty field
    with deadline(stage_timeout_s):
        root = check_root(storage)
        dataset = DatasetURI(parse_root(data, option="--data"))
        found = None
        if new_images.are_at(dataset):
            name, note = new_images.default_registered_model(root, dataset) if model == "champion" else ("", None)
            checkpoint = _model(root, f"champion:{name}" if name else model, dataset)
            found = new_images.find(root, dataset, checkpoint, split=split)
            found = dataclasses.replace(found, notes=(*found.notes, note)) if note else found
            dataset = new_images.raw_of(root, found, checkpoint)
        else:
            made = check_committed("--data", dataset, kinds=("raw", "prepared"))
            splits = sorted(
                {file.split for file in made.files if file.split and file.rows and file.split != "quarantine"}
            )
            if split is not None and split not in splits:
                raise ValueError(f"--split must be one of {', '.join(splits) or 'those with rows'}, got {split!r}")
            checkpoint = _model(root, model, dataset)
            _check_shape(made, checkpoint)
        user_code.check_listed()
        if not manifest.is_committed(predictions_of(root, checkpoint, dataset, split=split)):
            model_check.check_code(checkpoint, option="--model")
    return BatchRequest(
        root=root,
        checkpoint=checkpoint,
        dataset=dataset,
        user_images=found,
        split=split,
        workers=workers,
        stage_timeout_s=stage_timeout_s,
    )


def _check_shape(data: manifest.Manifest, checkpoint: CheckpointURI) -> None:
    expected = tuple(manifest.load(checkpoint).statistics["model"]["image_shape"])
    found = images.shape_of(data.columns["metadata"])
    if found != expected:
        raise ValueError(
            f"--data: its images have shape {found}, but model {checkpoint} expects {expected}; choose another "
            "--data or --model"
        )


def _model(root: Root, model: str, data: DatasetURI) -> CheckpointURI:
    kind, _, name = model.partition(":")
    if kind == "champion":
        registered_model = check_name(name or _registered_model(root, data), field="--model champion:NAME")
        try:
            checkpoint = champions.require_champion(root, registered_model)
        except ValueError as error:
            raise ValueError(f"--model: {error}") from None
    else:
        checkpoint = CheckpointURI(parse_root(model, option="--model"))
    check_committed("--model", checkpoint, kinds=("checkpoint",))
    return checkpoint


def _registered_model(root: Root, dataset: DatasetURI) -> str:
    """Return the registered model of `dataset`; raise `ValueError` if it is unknown."""
    made = manifest.load(dataset)
    if "raw" in made.parents:
        raw = DatasetURI(made.parent("raw", of=dataset))
        made = check_committed("--data: its source", raw, kinds=("raw",))
    if "classes" in made.parameters:
        return new_images.default_registered_model(root, DatasetURI(URI(made.statistics["sources"][0]["url"])))[0]
    try:
        return champions.default_of_raw(made)
    except ValueError as error:
        raise ValueError(f"--data: {dataset} {error}; use --model champion:NAME") from None
