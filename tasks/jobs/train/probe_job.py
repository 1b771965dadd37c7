"""A probe in the train job: a new head on a backbone that stays as it is, fitted to embeddings in this process."""

import dataclasses

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from storage import manifest, tables
from storage.kinds import EMBEDDINGS, DatasetURI, EmbeddingsURI
from storage.manifest import Manifest
from storage.statistics import EpochMetrics, Resolved
from storage.uri import URI
from tasks.images import embedding_rows
from tasks.images.embedding_rows import EmbeddedRows
from tasks.jobs import events
from tasks.jobs.train import attempts
from tasks.learning import checkpoint, hardware, images, probe, training_state
from tasks.learning.checkpoint import TRAINING, WEIGHTS, Meta
from tasks.learning.epoch_metrics import choose_class_weights
from tasks.learning.modeling import Classifier, averaged, fit_temperature, linear_head
from tasks.learning.probe import Probe
from tasks.stages import Train

ENSEMBLE_TEMPERATURE = 2 / 3
"""Of averaged probabilities without validation rows: an average is not sure enough (docs/internals/photos.md)."""
_MOST_ROWS = 200
"""Validation rows that the temperature of an ensemble is fitted to."""
_BATCH = 64
"""Of these rows."""


def train(stage: Train, prepared: Manifest, attempt: URI, *, threads: int) -> None:
    """Fit the probe of `stage` to the training rows of `prepared`, and write it as the checkpoint of a first epoch."""
    fitted = _fit(stage, prepared, threads=threads)
    (train_loss, train_accuracy), (loss, accuracy) = (
        _metrics(fitted.probe.logits(rows.vectors), rows.labels, fitted.class_weights)
        for rows in (fitted.rows, embedding_rows.read(fitted.embeddings, "validation"))
    )
    metrics = EpochMetrics(
        epoch=1,
        step=1,
        train_loss=train_loss,
        train_accuracy=train_accuracy,
        validation_loss=loss,
        validation_accuracy=accuracy,
        learning_rate=0.0,
        backbone_learning_rate=0.0,
        temperature=fitted.temperature,
    )
    meta = Meta(
        model=dataclasses.replace(fitted.model.spec, temperature=fitted.temperature),
        recipe=stage.recipe.to_dict(),
        prepared=attempts.trained_on(stage, prepared),
        parameters=stage.values,
        resolved=Resolved(
            batch_size=len(fitted.rows.labels),
            class_weights="balanced" if fitted.class_weights else "none",
            device="cpu",
            loader="embeddings",
            precision="fp32",
            threads=1,
            workers=1,
        ),
        epoch=1,
        step=1,
        history=(metrics,),
        hardware=fitted.hardware,
        sha256={},
    )
    tensors = {name: tensor.contiguous() for name, tensor in fitted.model.state_dict().items()}
    content = {WEIGHTS: safetensors.torch.save(tensors), TRAINING: safetensors.torch.save({}, {"training": "{}"})}
    checkpoint.write(attempt.child("epoch-0001"), meta, content)


def check_head(stage: Train, prepared: Manifest) -> None:
    """Raise `ValueError`, before the training, for a model that a probe cannot be fitted to."""
    linear_head(
        Classifier(training_state.model_of(stage.recipe.model, prepared, initial=stage.initial, weights=stage.weights))
    )


def average(stage: Train, prepared: Manifest, weights: bytes, meta: Meta, *, threads: int) -> tuple[bytes, Meta]:
    """Return `weights` and `meta` of a fine-tuned model with a probe of `stage` as its second backbone.

    The head of the probe is divided by its temperature; the temperature of both is fitted to validation rows.
    """
    fitted = _fit(stage, prepared, threads=threads)
    head = linear_head(fitted.model)
    with torch.no_grad():
        head.weight.div_(fitted.temperature)
        head.bias.div_(fitted.temperature)
    second = {f"probe.{name}": tensor.contiguous() for name, tensor in fitted.model.backbone.state_dict().items()}
    tuned = safetensors.torch.load(weights)
    spec = dataclasses.replace(meta.model, temperature=1.0, fine_tuned_temperature=meta.model.temperature)
    of_probe = embedding_rows.read(fitted.embeddings, "validation")
    labels, logits = of_probe.labels[:_MOST_ROWS], fitted.probe.logits(of_probe.vectors[:_MOST_ROWS])
    backbone = Classifier(meta.model)
    backbone.load_state_dict(tuned)
    both = (
        _validated(backbone.eval(), stage.prepared, prepared) / meta.model.temperature,
        torch.from_numpy(logits).float() / fitted.temperature,
    )
    temperature = fit_temperature(averaged(*both), torch.tensor(labels), usual=ENSEMBLE_TEMPERATURE)
    spec = dataclasses.replace(spec, temperature=round(float(temperature), 6))
    used = tuple(dict.fromkeys(meta.hardware + fitted.hardware))
    return safetensors.torch.save(tuned | second), meta.model_copy(update={"model": spec, "hardware": used})


@torch.inference_mode()
def _validated(model: Classifier, uri: DatasetURI, prepared: Manifest) -> Tensor:
    """Return the logits of the first validation rows; one thread, so that the number of cores changes no bit."""
    logits, left, threads = list[Tensor](), _MOST_ROWS, torch.get_num_threads()
    torch.set_num_threads(1)
    for file in prepared.split("validation"):
        table = tables.read_part(uri, file).slice(0, left)
        for start in range(0, len(table), _BATCH):
            pixels, _ = images.to_arrays(table.slice(start, _BATCH), model.spec.image_shape)
            logits.append(model(torch.from_numpy(pixels.copy())))
        left -= len(table)
    torch.set_num_threads(threads)
    return torch.cat(logits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fitted:
    """A model that ends in a fitted probe."""

    model: Classifier
    probe: Probe
    temperature: float
    """Fitted to the logits of rows that a fold of the cross-validation left out."""
    embeddings: EmbeddingsURI
    rows: EmbeddedRows
    """Training rows."""
    class_weights: list[float] | None
    hardware: tuple[str, ...]
    """Of the embeddings and of this process."""


def _fit(stage: Train, prepared: Manifest, *, threads: int) -> _Fitted:
    assert stage.embeddings
    rows = embedding_rows.read(stage.embeddings, "train")
    spec = training_state.model_of(stage.recipe.model, prepared, initial=stage.initial, weights=stage.weights)
    fitted, class_weights = fit(rows, stage.recipe.training.class_weights, threads=threads)
    events.write_line(f"probe of {len(rows.labels):,} training rows, L2 penalty {fitted.penalty:g}")
    model = Classifier(spec)
    training_state.load_initial_weights(model, initial=stage.initial, weights=stage.weights)
    head = linear_head(model)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(fitted.weights))
        head.bias.copy_(torch.from_numpy(fitted.bias))
    here = hardware.here(torch.device("cpu"), precision="fp32")
    return _Fitted(
        model=model,
        probe=fitted,
        temperature=temperature_of(fitted, rows.labels),
        embeddings=stage.embeddings,
        rows=rows,
        class_weights=class_weights,
        hardware=tuple(dict.fromkeys([*manifest.load(stage.embeddings).statistics_of(EMBEDDINGS).hardware, here])),
    )


def fit(rows: EmbeddedRows, class_weights: str, *, threads: int) -> tuple[Probe, list[float] | None]:
    """Fit a probe to training rows; return also the weights of the classes, by the recipe's `class_weights`."""
    weights = choose_class_weights(class_weights, np.bincount(rows.labels).tolist())
    fitted = probe.fit(rows.vectors, rows.labels, groups=rows.copies(), class_weights=weights, threads=threads)
    return fitted, weights


def temperature_of(fitted: Probe, labels: np.ndarray) -> float:
    """Return the temperature of a probe of rows with these labels, by its logits of rows that a fold left out."""
    judged = (torch.from_numpy(values[fitted.is_judged]) for values in (fitted.out_of_fold, labels))
    return round(float(fit_temperature(*judged)), 6)


def _metrics(logits: np.ndarray, labels: np.ndarray, class_weights: list[float] | None) -> tuple[float, float]:
    """Return weighted mean cross-entropy and accuracy."""
    weights = np.ones(len(labels)) if class_weights is None else np.asarray(class_weights)[labels]
    losses = probe.cross_entropy(logits, labels)
    return float((losses * weights).sum() / weights.sum()), float((logits.argmax(1) == labels).mean())
