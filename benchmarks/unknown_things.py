"""Which share of images of other things does a distance keep, which keeps most images of the model's own kinds?

`python -m benchmarks.unknown_things FOLDER OTHER... [--photos N]` prints a table of docs/internals/photos.md: for a
probe on the photos of FOLDER, a folder per class, and for the distances that keep 99, 95 and 90 % of its test photos,
the share kept of photos of a class without any in training, of noise, and of each OTHER folder, at any depth.
"""

import argparse
import random
from pathlib import Path

import numpy as np
import torch

from storage.statistics import ModelSpec
from tasks.images.embedding_rows import directions
from tasks.learning import decode, models, pretrained, probe
from tasks.learning.embedding import Embedder
from tasks.learning.modeling import Classifier

SIZE = 128


def photos_of(folder: Path, count: int) -> list[Path]:
    """Return up to `count` photos of `folder`, drawn by a seed."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    return random.Random(0).sample(paths, min(count, len(paths)))


def embedder() -> Embedder:
    """Return the backbone of `images-probe`."""
    mean, std = pretrained.normalization(models.LITE0) or ((), ())
    spec = ModelSpec(model=models.LITE0, image_shape=(SIZE, SIZE, 3), classes=("a", "b"), mean=mean, std=std)
    classifier = Classifier(spec)
    pretrained.start_from(classifier, pretrained.read_published(models.LITE0))
    return Embedder(classifier, threads=torch.get_num_threads(), device=torch.device("cpu"))


def read(paths: list[Path]) -> np.ndarray:
    """Return the pixels of photos as a run stores them, uint8 (N, SIZE, SIZE, 3)."""
    contents = [decode.decoded(path.read_bytes(), SIZE, 3).pixels for path in paths]
    return np.frombuffer(b"".join(contents), np.uint8).reshape(-1, SIZE, SIZE, 3)


def distances(vectors: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the distance of each embedding to the nearest of `known`."""
    return np.asarray(1 - (directions(vectors) @ directions(known).T).max(1))


def main() -> None:
    """Print a row for each kind of images."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unknown_things")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--photos", type=int, default=600, help="photos that are drawn of each folder")
    options, backbone = parser.parse_args(), embedder()
    paths = photos_of(options.folders[0], options.photos)
    vectors, names = backbone.embeddings(read(paths)), np.array([path.parent.name for path in paths])
    labels, is_test = np.unique(names, return_inverse=True)[1], np.arange(len(paths)) < 0.3 * len(paths)
    known, test = vectors[~is_test], vectors[is_test]
    is_right = probe.fit(known, labels[~is_test]).logits(test).argmax(1) == labels[is_test]
    own = distances(test, known)
    left_out = [(label, known[labels[~is_test] != label]) for label in range(labels.max() + 1)]
    noise = np.random.default_rng(0).integers(0, 256, (100, SIZE, SIZE, 3), np.uint8)
    kinds = {"right": own[is_right], "wrong": own[~is_right]}
    kinds["a class left out"] = np.concatenate([distances(vectors[labels == label], rest) for label, rest in left_out])
    kinds["noise"] = distances(backbone.embeddings(noise), known)
    for other in options.folders[1:]:
        kinds[other.name] = distances(backbone.embeddings(read(photos_of(other, options.photos))), known)
    limits = np.quantile(own, (0.99, 0.95, 0.9), method="higher")
    print(f"| {options.folders[0].name} | images | {' | '.join(f'at most {limit:.3f}' for limit in limits)} |")
    print(f"|---|{'---:|' * 4}")
    for name, values in kinds.items():
        shares = [f"{(values <= limit).mean():.0%}" for limit in limits]
        print(f"| {name} | {len(values):,} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
