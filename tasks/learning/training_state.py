"""Conversion between a trainer and the tensors of a checkpoint."""

import dataclasses
import io
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from storage import manifest
from storage.uri import URI, CheckpointURI
from tasks.learning.checkpoint import TRAINING, WEIGHTS, Meta, Snapshot, check_same, checked
from tasks.learning.epoch_metrics import EpochMetrics, metrics_of
from tasks.learning.loop import Trainer
from tasks.learning.modeling import Classifier, ModelSpec

_OF_THE_DEVICE = ("fused", "foreach", "capturable")
"""Settings of an optimizer that belong to the device it runs on, not to its state."""


def take(trainer: Trainer, history: list[EpochMetrics], *, prepared: str, about: dict[str, Any]) -> Snapshot:
    """Copy the state after the latest epoch; `about` holds further fields of `Meta`: parameters, resolved, numerics.

    From a GPU the copy goes to pinned memory on a stream of its own: neither this thread nor the next step waits for
    it. Whoever serializes the snapshot does.
    """
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
    training = {"optimizer": trainer.optimizer.state_dict(), "scheduler": trainer.scheduler.state_dict()}
    copying = _Copying(trainer.device)
    weights, training = copying.begun(dict(trainer.model.state_dict())), copying.begun(training)

    def serialized() -> dict[str, bytes]:
        copying.wait()
        stored = io.BytesIO()
        torch.save(training, stored)
        by_name = {name: tensor.contiguous() for name, tensor in weights.items()}
        return {WEIGHTS: safetensors.torch.save(by_name), TRAINING: stored.getvalue()}

    return Snapshot(meta=meta, serialized=serialized)


class _Copying:
    """Copies of tensors to the host: finished at once from the CPU, and from a GPU after `wait`."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begun(self, value: Any) -> Any:
        """Return `value` with a copy of each tensor in it, also in dictionaries, lists and tuples."""
        if isinstance(value, Tensor):
            return self._copied(value.detach())
        if isinstance(value, dict):
            return {key: self.begun(one) for key, one in value.items()}
        return type(value)(map(self.begun, value)) if isinstance(value, list | tuple) else value

    def _copied(self, tensor: Tensor) -> Tensor:
        copy = tensor.clone()  # steps change the original while the copy is on its way
        if self._stream is None or copy.device.type != "cuda":
            return copy
        on_host = torch.empty_like(copy, device="cpu", pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(copy.device))
        with torch.cuda.stream(self._stream):
            on_host.copy_(copy, non_blocking=True)
        copy.record_stream(self._stream)  # its memory is free for others only after the copy
        return on_host

    def wait(self) -> None:
        """Wait until all copies are complete."""
        if self._stream is not None:
            self._stream.synchronize()


def size_of(trainer: Trainer) -> int:
    """Estimate the bytes of a checkpoint of `trainer`."""
    # three tensors per parameter: the parameter and AdamW's two moments
    return 3 * sum(parameter.nbytes for parameter in trainer.model.parameters())


def restore(uri: URI, trainer: Trainer, *, prepared: str, about: dict[str, Any]) -> list[EpochMetrics]:
    """Restore `trainer` from the checkpoint at `uri`; return the history so far.

    Every rank verifies the bytes that it loads. Raises `WrongResume` naming the first difference between the two runs,
    and `RuntimeError` if the checkpoint changed after it was chosen.
    """
    meta, content = checked(uri)
    check_same(meta, prepared=prepared, about=about)
    trainer.model.load_state_dict(safetensors.torch.load(content[WEIGHTS]))
    training = torch.load(io.BytesIO(content[TRAINING]), weights_only=True, map_location=trainer.device)
    for saved, own in zip(training["optimizer"]["param_groups"], trainer.optimizer.param_groups, strict=True):
        saved.update({name: own[name] for name in _OF_THE_DEVICE})
    trainer.optimizer.load_state_dict(training["optimizer"])
    trainer.scheduler.load_state_dict(training["scheduler"])
    return [metrics_of(row) for row in meta.history]


def begin_with(model: Classifier, uri: CheckpointURI) -> None:
    """Load the weights of a committed checkpoint into `model`, which keeps the normalisation of its own rows.

    Raises `ValueError` naming the first difference between the two models.
    """
    found, _ = load_model(uri)
    for name in ("model", "image_shape", "classes"):
        was, now = getattr(found.spec, name), getattr(model.spec, name)
        if was != now:
            raise ValueError(
                f"initialize=champion: {name} of {uri} is {was!r}, but {now!r} here; use initialize=random"
            )
    model.backbone.load_state_dict(found.backbone.state_dict())


def load_model(uri: CheckpointURI) -> tuple[Classifier, Meta]:
    """Load the model of a committed checkpoint on the CPU, in evaluation mode, after verifying its bytes.

    Raises `FileNotFoundError` if nothing is committed at `uri`, `manifest.Damaged` if its bytes changed.
    """
    committed = manifest.load(uri)
    by_stem = {file.path.partition("-")[0]: file for file in committed.files}
    if committed.kind != "checkpoint":
        raise ValueError(f"{uri} is not a checkpoint: its kind is {committed.kind!r}")
    meta = Meta.model_validate_json(manifest.read_file(uri, by_stem["checkpoint"]))
    model = Classifier(ModelSpec(**meta.model))
    model.load_state_dict(safetensors.torch.load(manifest.read_file(uri, by_stem["weights"])))
    return model.eval(), meta
