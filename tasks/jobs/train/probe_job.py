"""The train job of a probe: a new head on a backbone that stays as it is, fitted to embeddings in this process."""

import dataclasses

import numpy as np
import pyarrow.compute as pc
import safetensors.torch
import torch

from storage import manifest
from storage.kinds import EMBEDDINGS, PREPARED
from storage.manifest import Manifest
from storage.statistics import EpochMetrics, Resolved
from storage.uri import URI
from tasks.images import embedding_rows
from tasks.jobs import events
from tasks.jobs.train import attempts
from tasks.learning import checkpoint, hardware, probe, training_state
from tasks.learning.checkpoint import TRAINING, WEIGHTS, Meta
from tasks.learning.epoch_metrics import choose_class_weights
from tasks.learning.modeling import Classifier, fit_temperature, linear_head
from tasks.stages import Train


def train(stage: Train, prepared: Manifest, attempt: URI, *, threads: int) -> None:
    """Fit the probe of `stage` to the training rows of `prepared`, and write it as the checkpoint of a first epoch.

    The temperature is fitted to the logits of rows that a fold of the cross-validation left out.
    """
    assert stage.embeddings and stage.recipe.training.kind == "probe"
    embedded = manifest.load(stage.embeddings)
    train, validation = (embedding_rows.read(stage.embeddings, split) for split in ("train", "validation"))
    spec = training_state.model_of(stage.recipe.model, prepared, initial=stage.initial, weights=stage.weights)
    counts = prepared.statistics_of(PREPARED).class_counts["train"]
    class_weights = choose_class_weights(stage.recipe.training.class_weights, [counts[name] for name in spec.classes])
    copies = pc.index_in(train.digests, value_set=pc.unique(train.digests)).to_numpy()
    fitted = probe.fit(train.vectors, train.labels, groups=copies, class_weights=class_weights, threads=threads)
    events.write_line(f"probe of {len(train.labels):,} training rows, L2 penalty {fitted.penalty:g}")
    model = Classifier(spec)
    training_state.load_initial_weights(model, initial=stage.initial, weights=stage.weights)
    head = linear_head(model)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(fitted.weights))
        head.bias.copy_(torch.from_numpy(fitted.bias))
    judged = (torch.from_numpy(values[fitted.is_judged]) for values in (fitted.out_of_fold, train.labels))
    temperature = float(fit_temperature(*judged))
    (train_loss, train_accuracy), (loss, accuracy) = (
        _metrics(fitted.logits(rows.vectors), rows.labels, class_weights) for rows in (train, validation)
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
        temperature=round(temperature, 6),
    )
    here = hardware.here(torch.device("cpu"), precision="fp32")
    meta = Meta(
        model=dataclasses.replace(spec, temperature=metrics.temperature),
        recipe=stage.recipe.to_dict(),
        prepared=attempts.trained_on(stage, prepared),
        parameters=stage.values,
        resolved=Resolved(
            batch_size=len(train.labels),
            class_weights="balanced" if class_weights else "none",
            device="cpu",
            precision="fp32",
            threads=1,
            workers=1,
        ),
        epoch=1,
        step=1,
        history=(metrics,),
        hardware=tuple(dict.fromkeys([*embedded.statistics_of(EMBEDDINGS).hardware, here])),
        sha256={},
    )
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    content = {WEIGHTS: safetensors.torch.save(tensors), TRAINING: safetensors.torch.save({}, {"training": "{}"})}
    checkpoint.write(attempt.child("epoch-0001"), meta, content)


def _metrics(logits: np.ndarray, labels: np.ndarray, class_weights: list[float] | None) -> tuple[float, float]:
    """Return weighted mean cross-entropy and accuracy."""
    weights = np.ones(len(labels)) if class_weights is None else np.asarray(class_weights)[labels]
    losses = probe.cross_entropy(logits, labels)
    return float((losses * weights).sum() / weights.sum()), float((logits.argmax(1) == labels).mean())
