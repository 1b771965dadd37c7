"""Features of photos, as the product's default model has them before its head, and linear probes on them."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.learning import pretrained
from tasks.learning.decode import Unreadable, decoded

_MODEL = "timm/tf_efficientnet_lite0"
_SIZE = 128
_BATCH = 64
_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Photos:
    """The photos of a folder with a folder per class."""

    name: str
    features: np.ndarray
    """float32, (photos, 1280)."""
    labels: np.ndarray
    """int64, (photos,)."""
    digests: np.ndarray
    """SHA-256 of each file, in hexadecimal."""
    classes: tuple[str, ...]


def read(folder: Path, *, cache: Path, per_class: int = 600) -> Photos:
    """Compute the features of the first `per_class` photos of each class, or read them from the folder `cache`."""
    file = cache / f"{folder.name}-{per_class}.npz"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with file.with_suffix(".part").open("wb") as part:
            np.savez(part, **_computed(folder, per_class))
        file.with_suffix(".part").rename(file)
    with np.load(file) as arrays:
        columns = {name: arrays[name] for name in ("features", "labels", "digests")}
        return Photos(name=folder.name, classes=tuple(arrays["classes"].tolist()), **columns)


def _computed(folder: Path, per_class: int) -> dict[str, Any]:
    import timm

    classes = sorted(child.name for child in folder.iterdir() if child.is_dir())
    pixels, labels, digests = list[np.ndarray](), list[int](), dict[str, None]()
    for label, name in enumerate(classes):
        files = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in _SUFFIXES)
        for path in files[:per_class]:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            if digest in digests:
                continue
            try:
                image = decoded(content, _SIZE, 3).pixels
            except Unreadable as error:
                print(f"left out {path}: {error}")
                continue
            pixels.append(np.frombuffer(image, np.uint8).reshape(_SIZE, _SIZE, 3))
            labels.append(label)
            digests[digest] = None
    model = timm.create_model(_MODEL.removeprefix("timm/"))
    model.load_state_dict(pretrained.read_published(_MODEL))
    model.eval()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in pretrained.normalization(_MODEL) or ())
    features = list[torch.Tensor]()
    with torch.inference_mode():
        for start in range(0, len(pixels), _BATCH):
            images = torch.from_numpy(np.stack(pixels[start : start + _BATCH])).permute(0, 3, 1, 2).float()
            features.append(model.forward_head(model.forward_features((images - mean) / std), pre_logits=True))
    return {
        "features": torch.cat(features).numpy(),
        "labels": np.array(labels),
        "digests": np.array(list(digests)),
        "classes": np.array(classes),
    }


def probe(features: np.ndarray, labels: np.ndarray, *, num_classes: int, decay: float = 0.01) -> "Probe":
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
    return Probe(layer=layer, mean=mean, std=std)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Probe:
    """A linear model on standardized features."""

    layer: torch.nn.Linear
    mean: np.ndarray
    std: np.ndarray

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Return float32 logits (rows, classes)."""
        with torch.inference_mode():
            logits: torch.Tensor = self.layer(torch.from_numpy((features - self.mean) / self.std))
        return np.asarray(logits)
