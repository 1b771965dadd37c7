"""From a trainer to a checkpoint, and back: the part of it that is tensors."""

import dataclasses
import io
from typing import Any

import safetensors.torch
import torch

from storage import manifest
from storage.uri import URI, CheckpointURI
from tasks.learning.checkpoint import TRAINING, WEIGHTS, Meta, Snapshot, check_same, checked
from tasks.learning.epoch import EpochMetrics
from tasks.learning.loop import Trainer
from tasks.learning.modeling import Classifier, ModelSpec

_STATES = 3
"""Tensors kept of each parameter: itself and AdamW's two moments."""


def take(trainer: Trainer, history: list[EpochMetrics], *, prepared: str, about: dict[str, Any]) -> Snapshot:
    """The state after the latest epoch; `about` gives `Meta`'s parameters and resolved."""
    meta = Meta(
        model=dataclasses.asdict(trainer.model.spec),
        recipe=trainer.recipe.to_dict(),
        prepared=prepared,
        epoch=history[-1].epoch,
        step=history[-1].step,
        history=[dataclasses.asdict(metrics) for metrics in history],
        sha256={},
        **about,
    )
    return Snapshot(meta=meta, weights=_weights(trainer), training=_training_state(trainer))


def size_of(trainer: Trainer) -> int:
    """About how many bytes a checkpoint of `trainer` takes."""
    return _STATES * sum(parameter.nbytes for parameter in trainer.model.parameters())


def restore(uri: URI, trainer: Trainer, *, prepared: str, about: dict[str, Any]) -> list[EpochMetrics]:
    """Put `trainer` in the state that was written to `uri`; returns the history so far.

    Every rank checks the bytes that it loads. Raises `WrongResume` naming the first thing in which the two runs differ,
    `RuntimeError` when the bytes are not those that were chosen.
    """
    meta, content = checked(uri)
    check_same(meta, prepared=prepared, about=about)
    trainer.model.load_state_dict(safetensors.torch.load(content[WEIGHTS]))
    training = torch.load(io.BytesIO(content[TRAINING]), weights_only=True, map_location=trainer.device)
    trainer.optimizer.load_state_dict(training["optimizer"])
    trainer.scheduler.load_state_dict(training["scheduler"])
    return [EpochMetrics(**metrics) for metrics in meta.history]  # type: ignore[arg-type]


def begin_with(model: Classifier, uri: CheckpointURI) -> None:
    """Give `model` the weights of a committed checkpoint, but not its normalisation, which is that of the new rows.

    Raises `ValueError` naming the first thing in which the two models differ.
    """
    found, _ = load_model(uri)
    for name in ("model", "image_shape", "classes"):
        was, now = getattr(found.spec, name), getattr(model.spec, name)
        if was != now:
            raise ValueError(f"initialize=champion: {name} of {uri} is {was!r}, but {now!r} here; begin with random")
    model.backbone.load_state_dict(found.backbone.state_dict())


def load_model(uri: CheckpointURI) -> tuple[Classifier, Meta]:
    """The model of a committed checkpoint, on the CPU, ready to predict; every byte is checked first.

    Raises `FileNotFoundError` when nothing is committed at `uri`, `manifest.Damaged` when it is not what was committed.
    """
    committed = manifest.load(uri)
    by_stem = {file.path.partition("-")[0]: file for file in committed.files}
    if committed.kind != "checkpoint":
        raise ValueError(f"{uri} is no checkpoint: it is of kind {committed.kind!r}")
    meta = Meta.model_validate_json(manifest.read_file(uri, by_stem["checkpoint"]))
    model = Classifier(ModelSpec.from_dict(meta.model))
    model.load_state_dict(safetensors.torch.load(manifest.read_file(uri, by_stem["weights"])))
    return model.eval(), meta


def _training_state(trainer: Trainer) -> bytes:
    buffer = io.BytesIO()
    torch.save({"optimizer": trainer.optimizer.state_dict(), "scheduler": trainer.scheduler.state_dict()}, buffer)
    return buffer.getvalue()


def _weights(trainer: Trainer) -> bytes:
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in trainer.model.state_dict().items()}
    content: bytes = safetensors.torch.save(state)
    return content
