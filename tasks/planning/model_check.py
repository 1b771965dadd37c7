"""Checks of the model before a run: its code is here, it can be built, and it takes the batches that it will get."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from storage import manifest
from storage.kinds import CHECKPOINT, CheckpointURI
from storage.process import gc_paused
from storage.statistics import ModelSpec
from storage.terminal import count, first
from tasks.images import user_images
from tasks.images.option import images_of
from tasks.images.user_images import UserImages
from tasks.learning import downloading, user_code
from tasks.learning.epoch_metrics import choose_batch_size
from tasks.learning.user_code import UserCodeError, wrap_user_errors
from tasks.planning.plan import Plan
from tasks.resources import devices, machine

if TYPE_CHECKING:
    from tasks.learning.modeling import Classifier


def check_code(checkpoint: CheckpointURI, *, option: str) -> None:
    """Raise `ValueError` naming `option` if the model of `checkpoint` is the user's own and its code is not here."""
    model = manifest.load(checkpoint).statistics_of(CHECKPOINT).model.model
    if user_code.is_reference(model):
        try:
            user_code.resolve(model)
        except ValueError as error:
            undo = "or, for a champion, restore the one before: data-to-model rollback NAME"
            raise ValueError(f"{option}: {checkpoint}: {error}; {undo}") from None


def check_rival(plan: Plan) -> None:
    """Raise `ValueError` if the champion cannot predict the test rows: code missing, other shape, or no common class.

    Skips what is not known yet, and a champion that does not exist. The gate leaves out rows that it was trained on.
    """
    if not plan.rival or manifest.is_committed(plan.of_rival[0].target):
        return
    champion = f"--register-as: the champion of {plan.registered_model!r}"
    with contextlib.suppress(FileNotFoundError, KeyError, manifest.Damaged):  # the gate reports it
        check_code(plan.rival, option=champion)
        shape, classes = images_of(plan.ingest, plan.preprocess.raw)
        model = manifest.load(plan.rival).statistics_of(CHECKPOINT).model
        reason = ""
        if shape is not None and model.image_shape != tuple(shape):
            expected, actual = (" x ".join(map(str, sides)) for sides in (model.image_shape, shape))
            reason = f"expects images of {expected}, but this data has {actual}"
        elif classes is not None and not set(classes) & set(model.classes):
            expected, actual = (first(names) for names in (model.classes, classes))
            reason = f"knows none of the classes of this data: it knows {expected}, the data has {actual}"
        if reason:
            raise ValueError(
                f"{champion}, {plan.rival}, {reason}; choose another registered model for this data with "
                "--register-as NAME"
            )


def check_training(plan: Plan) -> None:
    """Raise `ValueError` for what would end the training after minutes, but can be known now."""
    if manifest.is_committed(plan.train.target):
        return
    training = plan.recipe.training
    if training.kind == "probe":
        check_start(plan)
        return
    workers, most, batch_size = plan.train.workers or 0, _num_train_rows(plan), training.batch_size
    batch_size = batch_size if most is None else choose_batch_size(batch_size, most)
    if 0 < batch_size < workers:  # else a worker gets no row of a batch
        raise ValueError(
            f"batch_size must be at least the number of workers, {workers}, got {batch_size}; use a larger "
            "--set batch_size or fewer --workers"
        )
    if most is not None and batch_size > most:
        raise ValueError(
            f"batch_size must be at most the number of training rows, {most:,}, got {batch_size}; use a "
            "smaller --set batch_size"
        )
    is_local = plan.train.workers == 0 or not os.environ.get("RAY_ADDRESS")
    if training.compile == "on" and is_local and (plan.recipe.resources.device == "cpu" or not machine.gpus()):
        devices.check_compiler(where="this machine")
    check_start(plan)


def check_start(plan: Plan) -> None:
    """Raise `ValueError` if the initial weights do not fit the model; building it takes seconds.

    What a library publishes fits, and the champion of the run's own registered model was compared by its description.
    """
    start, file = plan.recipe.training.start, plan.weights
    is_file, is_other = start.kind == "file" and file, start.kind == "champion" and start.registered_model
    if not (is_file or is_other) or images_of(plan.ingest, plan.preprocess.raw)[0] is None:
        return
    try:
        model = _build(plan)
    except Exception:  # `check_model` and the training report it; on a cluster, packages may be there only
        return
    from tasks.learning import pretrained, training_state

    if file is None:
        training_state.load_initial_weights(model, initial=plan.train.initial, weights=None)
        return
    with tempfile.TemporaryDirectory() as folder:
        downloading.fetch_file(file.files[0], Path(folder), mirrors=(), log=lambda *_: None)
        path = Path(folder, file.files[0].name)
        try:
            pretrained.start_from_file(model, path)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), file.files[0].copy)) from None


def _num_train_rows(plan: Plan) -> int | None:
    """Return the most training rows that there may be; None until the data is read."""
    if manifest.is_committed(plan.preprocess.raw):
        return manifest.load(plan.preprocess.raw).num_rows("train")
    listed = listing_of(plan)
    return sum(file.split != "test" for file in listed.files) if listed and listed.kind == "images" else None


def listing_of(plan: Plan) -> UserImages | None:
    """Return the user's images that the run ingests; None for a source, and for an existing raw dataset."""
    return user_images.read(plan.ingest.listing) if plan.ingest and plan.ingest.listing else None


def check_model(plan: Plan, *, is_embedded: bool = False) -> str:
    """Build the model, and where it will train on CPUs run a batch of two rows through it; takes seconds.

    With `is_embedded`, embeddings are to be taken before the last layer of its head.

    Returns:
        The model in words.

    Raises:
        ValueError: It cannot be built, or does not give one logit per class. For the user's own code the message names
            file and line.
    """
    recipe = plan.recipe
    if os.environ.get("RAY_ADDRESS") and plan.train.workers != 0:
        return f"{recipe.model}, built only on the cluster's nodes, which have packages of their own"
    try:
        rows = 0 if recipe.resources.device != "cpu" and machine.gpus() else 2
        num_weights = _try(plan, rows=rows, is_embedded=is_embedded)
    except MemoryError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = "; ".join(map(str.strip, lines if isinstance(error, UserCodeError) else lines[:1]))
        kind = "" if isinstance(error, UserCodeError | ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"model {recipe.model} cannot be used: {kind}{reason}") from None
    return f"{recipe.model}, {count(num_weights, 'weight')}"


def _try(plan: Plan, *, rows: int, is_embedded: bool) -> int:
    """Build the model and run `rows` rows through it as in training; return the number of weights."""
    import torch

    from tasks.learning.modeling import linear_head

    model = _build(plan)
    if is_embedded:
        linear_head(model)
    if rows:
        with gc_paused(), contextlib.chdir(os.sep), wrap_user_errors(), torch.no_grad():
            model(torch.zeros(rows, *model.spec.image_shape, dtype=torch.uint8))
    return sum(weight.numel() for weight in model.parameters())


def _build(plan: Plan) -> "Classifier":
    from tasks.learning.modeling import Classifier, head_of, linear_head

    shape, names = images_of(plan.ingest, plan.preprocess.raw)
    assert shape is not None
    classes = names or ("a", "b")
    channels = shape[2]
    spec = ModelSpec(
        model=plan.recipe.model, image_shape=shape, classes=classes, mean=(0.0,) * channels, std=(1.0,) * channels
    )
    # Another folder: a path relative to this one would not be found by workers.
    with gc_paused(), contextlib.chdir(os.sep), wrap_user_errors():
        model = Classifier(spec, pretrained=plan.train.initial is None and plan.train.weights is None)
    training = plan.recipe.training
    if plan.recipe.has_probe:
        linear_head(model)
    elif training.kind == "finetune" and (
        training.freeze_epochs or training.backbone_lr_scale != 1 or training.start.kind == "pretrained"
    ):
        head_of(model.backbone)
    return model
