"""Conversion between a trainer and the tensors of a checkpoint."""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from storage import manifest
from storage.kinds import CHECKPOINT, PREPARED, CheckpointURI, FilesURI
from storage.manifest import JSON, Manifest
from storage.statistics import EpochMetrics, ModelSpec
from storage.uri import URI
from tasks.learning import checkpoint, images, pretrained
from tasks.learning.checkpoint import META, TRAINING, WEIGHTS, Meta, WrongResume
from tasks.learning.loop import Loader, Trainer
from tasks.learning.modeling import Classifier
from tasks.learning.optimizer import align_state
from tasks.learning.pretrained import start_from, start_from_file

_OF_THE_DEVICE = ("fused", "foreach", "capturable")
"""Settings of an optimizer that depend on its device and are not part of its state."""
_TENSOR, _ITEMS = "tensor", "items"
"""Keys of what stands in JSON for a tensor, by its name beside it, and for a dictionary, whose keys may be numbers."""

_FIRST_ROWS = 5000
"""Most rows from which a model is initialised, as in airbench94."""


def model_of(model: str, dataset: Manifest, *, initial: CheckpointURI | None, weights: FilesURI | None) -> ModelSpec:
    """Return the spec of `model` for images such as those in `dataset`.

    It normalizes them as those that the initial weights, if any, were trained on; else by what `dataset`, then a
    prepared one, has measured.
    """
    metadata = dataset.columns["metadata"]
    shape = images.shape_of(metadata)
    if weights and (published := pretrained.normalization(model)):
        mean, std = published
    else:
        measured = (
            manifest.load(initial).statistics_of(CHECKPOINT).model if initial else dataset.statistics_of(PREPARED)
        )
        mean, std = measured.mean, measured.std
    # For another number of channels, each gets the mean of all.
    mean, std = (
        tuple(values) if len(values) == shape[2] else (sum(values) / len(values),) * shape[2] for values in (mean, std)
    )
    return ModelSpec(model=model, image_shape=shape, classes=images.classes_of(metadata), mean=mean, std=std)


def take(trainer: Trainer, history: list[EpochMetrics], *, prepared: str, fields: JSON) -> Callable[[URI], None]:
    """Copy the state after the latest epoch; return a function that writes it to a folder, in any thread.

    `fields` holds more of `Meta`: parameters, resolved, hardware, and the recipe as asked for, if not the trainer's.
    """
    of_run: JSON = {"recipe": trainer.recipe.to_dict()} | fields
    meta = Meta(
        model=dataclasses.replace(trainer.model.spec, temperature=history[-1].temperature),
        prepared=prepared,
        epoch=history[-1].epoch,
        step=history[-1].step,
        history=tuple(history),
        sha256={},
        **of_run,
    )
    tensors: dict[str, Tensor] = {}

    def plain(value: object) -> object:
        if isinstance(value, Tensor):
            name = str(len(tensors))
            tensors[name] = value
            return {_TENSOR: name}
        if isinstance(value, dict):
            return {_ITEMS: [[key, plain(item)] for key, item in value.items()]}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    training = {"optimizer": trainer.optimizer.state_dict(), "scheduler": trainer.scheduler.state_dict()}
    rest = {"training": json.dumps(plain(training))}
    weights, state = snapshot(trainer.model.state_dict()), snapshot(tensors)

    def write(folder: URI) -> None:
        content = {WEIGHTS: safetensors.torch.save(weights()), TRAINING: safetensors.torch.save(state(), rest)}
        checkpoint.write(folder, meta, content)

    return write


def snapshot(tensors: Mapping[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    """Copy `tensors` to the host, contiguous; return a function that waits for the copies, in any thread.

    A GPU first copies them in its own memory, in a few kernels; what follows is done while it computes. The caller's
    thread computes: another would get OpenMP threads of its own, and with more than cores each step is slower.
    """
    by_type = dict[tuple[torch.device, torch.dtype], list[str]]()
    for name, tensor in tensors.items():
        by_type.setdefault((tensor.device, tensor.dtype), []).append(name)
    copies, events = dict[str, Tensor](), list[torch.cuda.Event]()
    for (device, _), names in by_type.items():
        joined = torch.cat([tensors[name].detach().reshape(-1) for name in names])
        if device.type == "cuda":
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            joined.record_stream(stream)
            with torch.cuda.stream(stream):
                host = torch.empty(joined.shape, dtype=joined.dtype, pin_memory=True)
                joined = host.copy_(joined, non_blocking=True)
            events.append(stream.record_event())
        pieces = joined.split([tensors[name].numel() for name in names])
        copies |= {name: piece.view(tensors[name].shape) for name, piece in zip(names, pieces, strict=True)}

    def wait() -> dict[str, Tensor]:
        for event in events:
            event.synchronize()
        return copies

    return wait


def restore(folder: Path, trainer: Trainer, *, prepared: str, fields: JSON) -> list[EpochMetrics]:
    """Restore `trainer` from the checkpoint in the local `folder`, verified before; return the history so far.

    Raises `WrongResume` if it belongs to a training on other data, with other parameters or another number of workers.
    """
    meta = Meta.model_validate_json((folder / META).read_bytes())
    before = {"dataset": meta.prepared, "parameters": meta.parameters, "workers": meta.resolved.workers}
    now = {"dataset": prepared, "parameters": fields["parameters"], "workers": fields["resolved"].workers}
    if changes := [
        f"{name}: {before[name]} in the interrupted run, {now[name]} now" for name in now if before[name] != now[name]
    ]:
        raise WrongResume(f"{'; '.join(changes)}; use the earlier values, or train again with --refresh")
    trainer.model.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
    with safetensors.safe_open(folder / TRAINING, framework="pt", device=str(trainer.device)) as file:
        training = json.loads(
            file.metadata()["training"],
            object_hook=lambda one: dict(one[_ITEMS]) if _ITEMS in one else file.get_tensor(one[_TENSOR]),
        )
    for saved, own in zip(training["optimizer"]["param_groups"], trainer.optimizer.param_groups, strict=True):
        saved.update({name: own[name] for name in _OF_THE_DEVICE if name in own})
    trainer.optimizer.load_state_dict(training["optimizer"])
    align_state(trainer.optimizer)
    trainer.scheduler.load_state_dict(training["scheduler"])
    return list(meta.history)


def load_initial_weights(model: Classifier, *, initial: CheckpointURI | None, weights: FilesURI | None) -> bool:
    """Load the weights of a committed checkpoint, or of a committed file, into `model`; return if its head is new.

    Raises `ValueError` naming the first differences between the two models, and `manifest.Damaged`.
    """
    if initial:
        before, _ = load_model(initial)
        return start_from(model, before.backbone.state_dict(), classes=before.spec.classes)
    assert weights
    (file,) = manifest.load(weights).files
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, file.path)
        path.write_bytes(manifest.read_file(weights, file))
        return start_from_file(model, path)


def initialize_from_rows(model: Classifier, loader: Loader) -> None:
    """Call `initialize_from` of a backbone that has it with this rank's first training rows, normalized (BCHW).

    With several ranks, the trainer gives all of them the weights of rank 0; every rank must call this.
    """
    initialize, num_rows = getattr(model.backbone, "initialize_from", None), min(_FIRST_ROWS, loader.num_train_rows())
    if initialize and num_rows:
        images, _ = next(iter(loader.train_batches(epoch=1, batch_size=num_rows)))
        initialize(model.normalized(images.cpu()))  # on the CPU: the same weights on every device


def load_model(uri: CheckpointURI) -> tuple[Classifier, Meta]:
    """Load the model of a committed checkpoint on the CPU, in evaluation mode, after verifying its bytes.

    Raises `FileNotFoundError` if nothing is committed at `uri`, `manifest.Damaged` if its bytes changed.
    """
    committed = manifest.load(uri)
    if committed.kind != "checkpoint":
        raise ValueError(f"{uri} is not a checkpoint: its kind is {committed.kind!r}")
    described, weights = committed.file("checkpoint"), committed.file("weights")
    assert described and weights, "every checkpoint has both"
    meta = Meta.model_validate_json(manifest.read_file(uri, described))
    model = Classifier(meta.model)
    model.load_state_dict(safetensors.torch.load(manifest.read_file(uri, weights)))
    return model.eval(), meta
