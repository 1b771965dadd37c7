"""Which rule of promotion gives the better model, and how often is an equally good model called better?

`python -m benchmarks.promotion FOLDER...` prints the tables of docs/promotion.md; each has a folder of photos per
class. Models are linear probes on the features of photos, as the default model has them before its head; the tests
of the product compare them.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from storage.decision import METRICS
from storage.kinds import DatasetURI
from tasks.learning import pretrained
from tasks.learning.decode import decoded
from tasks.promotion.answers import Answers
from tasks.promotion.significance import mcnemar_test

_MODEL, _SIZE, _PER_CLASS = "timm/tf_efficientnet_lite0", 128, 600
_SUFFIXES = (".jpg", ".jpeg", ".png")
NIGHTS = (0.4, 0.55, 0.7, 0.85, 1.0)
"""Photos of each night, as shares of those on the last; the others are held out."""
_DRAWS, _NUM_EQUAL = 12, 30
"""Draws of the photos, and equally good models."""
BAD_NIGHT = 3
RULES: dict[str, Callable[[int, int], bool]] = {
    "p <= 0.05": lambda better, worse: better > worse and mcnemar_test(better, worse) <= 0.05,
    "p <= 0.2": lambda better, worse: better > worse and mcnemar_test(better, worse) <= 0.2,
    "not worse": lambda better, worse: better >= worse,
    "always": lambda better, worse: True,
}
"""Whether a challenger is promoted, by the test rows that it alone and that the champion alone gets right."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Photos:
    """The photos of a folder with a folder per class."""

    name: str
    features: np.ndarray
    """float32, (photos, 1280)."""
    labels: np.ndarray
    """int64, (photos,)."""
    num_classes: int


def main() -> None:
    """Print the tables for each folder of photos."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promotion")
    parser.add_argument("folders", nargs="+", type=Path)
    torch.set_num_threads(1)
    for folder in parser.parse_args().folders:
        photos = read(folder)
        for line in (*nights(photos, is_bad=False), *nights(photos, is_bad=True), *equal_models(photos)):
            print(line, flush=True)


def read(folder: Path) -> Photos:
    """Compute the features of the first photos of each class."""
    import timm

    classes = sorted(child for child in folder.iterdir() if child.is_dir())
    labels: dict[bytes, int] = {}
    for label, class_folder in enumerate(classes):
        files = sorted(path for path in class_folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
        for path in files[:_PER_CLASS]:
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
    return Photos(
        name=folder.name,
        features=torch.cat(features).numpy(),
        labels=np.array(list(labels.values())),
        num_classes=len(classes),
    )


def predictions_of_probe(photos: Photos, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Fit a logistic regression on standardized features of `rows` by L-BFGS; return the class it gives each photo."""
    mean, std = photos.features[rows].mean(0), photos.features[rows].std(0) + 1e-6
    standardized = torch.from_numpy((photos.features - mean) / std)
    inputs, targets = standardized[rows], torch.from_numpy(labels)
    layer = torch.nn.Linear(inputs.shape[1], photos.num_classes)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(layer(inputs), targets) + 0.01 * layer.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    classes: np.ndarray = layer(standardized).argmax(1).numpy()
    return classes


def nights(photos: Photos, *, is_bad: bool) -> Iterator[str]:
    """Yield a table: accuracy, on photos held out, of the model in use on each night, by rule."""
    series = [_series(photos, np.random.default_rng(seed), is_bad=is_bad) for seed in range(_DRAWS)]
    yield f"\n{photos.name}{', half of the new labels of night 4 wrong' * is_bad}\n"
    yield "| rule | night 1 | 2 | 3 | 4 | 5 | promoted | of these truly worse | bad model in use |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for rule, accepts in RULES.items():
        paths, promoted, worse, bad = list[list[float]](), 0, 0, 0
        for held, is_right in series:
            champion, path = 0, [held[0]]
            for night in range(1, len(NIGHTS)):
                if accepts(*_only_one_right(is_right[night][night], is_right[night][champion])):
                    promoted, worse = promoted + 1, worse + (held[night] < held[champion])
                    bad += is_bad and night == BAD_NIGHT
                    champion = night
                path.append(held[champion])
            paths.append(path)
        shown = " | ".join(f"{value:.3f}" for value in np.mean(paths, 0))
        total = _DRAWS * (len(NIGHTS) - 1)
        yield f"| {rule} | {shown} | {promoted} of {total} | {worse} | {f'{bad} of {_DRAWS}' * is_bad} |"


def _series(photos: Photos, generator: np.random.Generator, *, is_bad: bool) -> tuple[list[float], list[np.ndarray]]:
    """Train a model a night.

    Returns:
        The accuracy of each on the photos held out; and for each night which test rows each model gets right, (models
        until then, test rows).
    """
    most = min(round(450 / photos.num_classes), int(0.65 * np.bincount(photos.labels).min()))
    by_class = [generator.permutation(np.flatnonzero(photos.labels == label)) for label in range(photos.num_classes)]
    held_out = np.concatenate([rows[most:] for rows in by_class])
    is_test = generator.random(len(photos.labels)) < 0.2
    before = np.array([], int)
    held, predictions, is_right = list[float](), list[np.ndarray](), list[np.ndarray]()
    for night, share in enumerate(NIGHTS):
        rows = np.concatenate([rows[: round(most * share)] for rows in by_class])
        labels = photos.labels.copy()
        if is_bad and night == BAD_NIGHT:
            new = np.setdiff1d(rows, before)
            wrong = new[generator.random(len(new)) < 0.5]
            shift = generator.integers(1, photos.num_classes, len(wrong))
            labels[wrong] = (labels[wrong] + shift) % photos.num_classes
        train, test = rows[~is_test[rows]], rows[is_test[rows]]
        predictions.append(predictions_of_probe(photos, train, labels[train]))
        held.append(float((predictions[-1] == photos.labels)[held_out].mean()))
        is_right.append(np.stack(predictions)[:, test] == labels[test])
        before = rows
    return held, is_right


def _only_one_right(ours: np.ndarray, theirs: np.ndarray) -> tuple[int, int]:
    return int((ours & ~theirs).sum()), int((theirs & ~ours).sum())


def equal_models(photos: Photos) -> Iterator[str]:
    """Yield a table: probes on random halves of 200 photos, compared on 100 others and 5 more of a rare class."""
    generator = np.random.default_rng(0)
    order = generator.permutation(len(photos.labels))
    train, rest = order[:200], order[200:]
    halves = [generator.permutation(train)[:100] for _ in range(_NUM_EQUAL)]
    predictions = [predictions_of_probe(photos, half, photos.labels[half]) for half in halves]
    is_rare = photos.labels[rest] == 0
    test = np.sort(np.concatenate([rest[~is_rare][:100], rest[is_rare][:5]]))
    about: dict[str, Any] = {"classes": tuple(map(str, range(photos.num_classes)))}
    about |= {"ids": test, "labels": photos.labels[test], "dataset": DatasetURI("/datasets/prepared/photos-1")}
    answers = [Answers(predictions=one[test], **about) for one in predictions]
    yield f"\n{photos.name}, equally good models, 5 test rows of a rare class\n"
    yield "| metric | p <= 0.05 |\n|---|---|"
    for metric in METRICS:
        pairs = [(one, other) for index, one in enumerate(answers) for other in answers[:index]]
        p_values = np.array([one.compare_with(other, metric=metric).p_value for one, other in pairs])
        yield f"| {metric} | {(p_values <= 0.05).mean():.1%} |"
    is_right = np.stack([model[rest] == photos.labels[rest] for model in predictions])
    yield f"\n{photos.name}, 100 nights of equally good models, a new test row each night\n"
    yield "| the p-value is divided by | with a false promotion |\n|---|---|"
    for counted, is_kept in (("models compared on the same rows", False), ("models compared with the champion", True)):
        years = [_has_false_promotion(is_right, np.random.default_rng(year), is_kept=is_kept) for year in range(500)]
        yield f"| {counted} | {np.mean(years):.0%} |"


def _has_false_promotion(is_right: np.ndarray, generator: np.random.Generator, *, is_kept: bool) -> bool:
    """Compare a random model with the champion each night; return whether one was significantly better."""
    rows, champion = generator.permutation(is_right.shape[1]), int(generator.integers(len(is_right)))
    for night in range(100):
        challenger = int(generator.integers(len(is_right)))
        better, worse = _only_one_right(*(is_right[model][rows[: 60 + night]] for model in (challenger, champion)))
        if better > worse and mcnemar_test(better, worse) <= 0.05 / (1 + night if is_kept else 1):
            return True
    return False


if __name__ == "__main__":
    main()
