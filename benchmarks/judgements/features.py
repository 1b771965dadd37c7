"""Features of photos, as the product's default model has them before its head, and linear probes on them."""

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.learning import pretrained
from tasks.learning.decode import decoded

_MODEL, _SIZE = "timm/tf_efficientnet_lite0", 128
_SUFFIXES = (".jpg", ".jpeg", ".png")
Probe = Callable[[np.ndarray], np.ndarray]
"""Gives logits (rows, classes) of features."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Photos:
    """The photos of a folder with a folder per class."""

    name: str
    features: np.ndarray
    """float32, (photos, 1280)."""
    labels: np.ndarray
    """int64, (photos,)."""
    classes: tuple[str, ...]


def of_command_line() -> Iterator[Photos]:
    """Yield the photos of each folder that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/photo-features").expanduser())
    options = parser.parse_args()
    torch.set_num_threads(1)
    for folder in options.folders:
        yield _read(folder, cache=options.cache)


def _read(folder: Path, *, cache: Path, per_class: int = 600) -> Photos:
    """Compute the features of the first `per_class` photos of each class, or read them from the folder `cache`."""
    file = cache / f"{folder.name}-{per_class}.npz"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(file, **_computed(folder, per_class))
    with np.load(file) as arrays:
        labels, classes = arrays["labels"], tuple(arrays["classes"].tolist())
        return Photos(name=folder.name, classes=classes, features=arrays["features"], labels=labels)


def _computed(folder: Path, per_class: int) -> dict[str, Any]:
    import timm

    classes = sorted(child.name for child in folder.iterdir() if child.is_dir())
    labels: dict[bytes, int] = {}
    for label, name in enumerate(classes):
        files = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in _SUFFIXES)
        for path in files[:per_class]:
            labels.setdefault(path.read_bytes(), label)  # the same bytes count once
    model = timm.create_model(_MODEL.removeprefix("timm/"))
    model.load_state_dict(pretrained.read_published(_MODEL))
    model.eval()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in pretrained.normalization(_MODEL) or ())
    features = list[torch.Tensor]()
    for content in labels:
        pixels = np.frombuffer(decoded(content, _SIZE, 3).pixels, np.uint8).reshape(1, _SIZE, _SIZE, 3)
        images = (torch.from_numpy(pixels.copy()).permute(0, 3, 1, 2).float() - mean) / std
        with torch.inference_mode():
            features.append(model.forward_head(model.forward_features(images), pre_logits=True))
    arrays = {"features": torch.cat(features).numpy(), "labels": np.array(list(labels.values()))}
    return arrays | {"classes": np.array(classes)}


def probe(features: np.ndarray, labels: np.ndarray, *, num_classes: int, decay: float = 0.01) -> Probe:
    """Fit a logistic regression on standardized features by L-BFGS; `decay` is half the L2 penalty."""
    mean, std = features.mean(0), features.std(0) + 1e-6
    inputs, targets = torch.from_numpy((features - mean) / std), torch.from_numpy(labels)
    layer = torch.nn.Linear(inputs.shape[1], num_classes)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(layer(inputs), targets) + decay * layer.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return lambda others: layer(torch.from_numpy((others - mean) / std)).detach().numpy()
