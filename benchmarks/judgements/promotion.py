"""Which rule of promotion gives the better model, and how often is an equally good model called better?

`python -m benchmarks.judgements.promotion FOLDER... --cache FOLDER` prints the tables of docs/promotion.md. Models are
linear probes on the features of the default model; the product's own comparison judges them.
"""

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.judgements import features
from benchmarks.judgements.features import Photos
from storage.decision import METRICS, Difference
from storage.uri import DatasetURI
from tasks.promotion.answers import Answers
from tasks.promotion.significance import mcnemar_test

NIGHTS = (0.4, 0.55, 0.7, 0.85, 1.0)
"""Photos of each night, as shares of those on the last; the others are held out."""
_DRAWS, _NUM_EQUAL = 12, 30
"""Draws of the photos, and equally good models."""
BAD_NIGHT = 3
RULES: dict[str, Callable[[Difference], bool]] = {
    "p <= 0.05": lambda difference: difference.difference > 0 and difference.p_value <= 0.05,
    "p <= 0.2": lambda difference: difference.difference > 0 and difference.p_value <= 0.2,
    "not worse": lambda difference: difference.difference >= 0,
    "always": lambda difference: True,
}
"""How the challenger is compared with the champion."""


def main() -> None:
    """Print the tables for each folder of photos."""
    for photos in features.of_command_line():
        for line in (*nights(photos, is_bad=False), *nights(photos, is_bad=True), *equal_models(photos)):
            print(line, flush=True)


def nights(photos: Photos, *, is_bad: bool) -> Iterator[str]:
    """Yield a table: accuracy, on photos held out, of the model in use on each night, by rule."""
    num_classes = len(photos.classes)
    most = min(round(450 / num_classes), int(0.65 * np.bincount(photos.labels).min()))
    runs = [_run(photos, np.random.default_rng(seed), is_bad=is_bad, most=most) for seed in range(_DRAWS)]
    sizes = ", ".join(f"{round(most * share) * num_classes}" for share in NIGHTS)
    yield f"\n{photos.name}, {sizes} photos{', half of the new labels of night 4 wrong' if is_bad else ''}\n"
    yield "| rule | night 1 | 2 | 3 | 4 | 5 | promoted | of these truly worse | bad model in use |"
    yield "|---|---|---|---|---|---|---|---|---|"
    newest = np.mean([held for held, _ in runs], 0)
    yield f"| newest model | {' | '.join(f'{value:.3f}' for value in newest)} | | | |"
    for rule, accepts in RULES.items():
        paths, promoted, worse, bad = list[list[float]](), 0, 0, 0
        for held, compare in runs:
            champion, path = 0, [held[0]]
            for night in range(1, len(NIGHTS)):
                if accepts(compare(night, champion)):
                    promoted, worse = promoted + 1, worse + (held[night] < held[champion])
                    bad += is_bad and night == BAD_NIGHT
                    champion = night
                path.append(held[champion])
            paths.append(path)
        shown = " | ".join(f"{value:.3f}" for value in np.mean(paths, 0))
        total = _DRAWS * (len(NIGHTS) - 1)
        yield f"| {rule} | {shown} | {promoted} of {total} | {worse} | {f'{bad} of {_DRAWS}' if is_bad else ''} |"


def _run(
    photos: Photos, generator: np.random.Generator, *, is_bad: bool, most: int
) -> tuple[list[float], Callable[[int, int], Difference]]:
    """Train a model a night; return the accuracy of each on the photos held out, and how two of them compare."""
    num_classes = len(photos.classes)
    by_class = [generator.permutation(np.flatnonzero(photos.labels == label)) for label in range(num_classes)]
    held_out = np.concatenate([rows[most:] for rows in by_class])
    is_test = generator.random(len(photos.labels)) < 0.2
    before = np.array([], int)
    held, predictions, tests = list[float](), list[np.ndarray](), list[tuple[np.ndarray, np.ndarray]]()
    for night, share in enumerate(NIGHTS):
        rows = np.concatenate([rows[: round(most * share)] for rows in by_class])
        labels = photos.labels.copy()
        if is_bad and night == BAD_NIGHT:
            new = np.setdiff1d(rows, before)
            wrong = new[generator.random(len(new)) < 0.5]
            labels[wrong] = (labels[wrong] + generator.integers(1, num_classes, len(wrong))) % num_classes
        train, test = rows[~is_test[rows]], rows[is_test[rows]]
        probe = features.probe(photos.features[train], labels[train], num_classes=num_classes)
        predictions.append(probe(photos.features).argmax(1))
        held.append(float((predictions[-1] == photos.labels)[held_out].mean()))
        tests.append((test, labels[test]))
        before = rows

    def compare(night: int, champion: int) -> Difference:
        test, truth = tests[night]
        ours, theirs = (_answers(photos, test, truth, predictions[model][test]) for model in (night, champion))
        return ours.compare_with(theirs, metric="accuracy")

    return held, compare


def _answers(photos: Photos, rows: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> Answers:
    dataset = DatasetURI("/datasets/prepared/photos-0123456789ab")
    return Answers(ids=rows, labels=labels, predictions=predictions, classes=photos.classes, dataset=dataset)


def equal_models(photos: Photos) -> Iterator[str]:
    """Yield a table: probes on random halves of 200 photos, compared on 100 others and 5 more of a rare class."""
    generator, num_classes = np.random.default_rng(0), len(photos.classes)
    order = generator.permutation(len(photos.labels))
    train, rest = order[:200], order[200:]
    halves = [generator.permutation(train)[:100] for _ in range(_NUM_EQUAL)]
    probes = (features.probe(photos.features[half], photos.labels[half], num_classes=num_classes) for half in halves)
    answers = [probe(photos.features).argmax(1) for probe in probes]
    is_rare = photos.labels[rest] == 0
    test = np.sort(np.concatenate([rest[~is_rare][:100], rest[is_rare][:5]]))
    found: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for first in range(_NUM_EQUAL):
        for second in range(first):
            pair = [_answers(photos, test, photos.labels[test], answers[model][test]) for model in (first, second)]
            for metric, values in found.items():
                values.append(pair[0].compare_with(pair[1], metric=metric).p_value)
    yield f"\n{photos.name}, equally good models, 5 test rows of a rare class\n"
    yield "| metric | p <= 0.05 | p <= 0.005 |\n|---|---|---|"
    for metric, values in found.items():
        shares = ((np.array(values) <= limit).mean() for limit in (0.05, 0.005))
        yield f"| {metric} | {' | '.join(f'{share:.1%}' for share in shares)} |"
    is_right = np.stack([model[rest] == photos.labels[rest] for model in answers])
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
        ours, theirs = (is_right[model][rows[: 60 + night]] for model in (challenger, champion))
        better, worse = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
        if better > worse and mcnemar_test(better, worse) <= 0.05 / (1 + night if is_kept else 1):
            return True
    return False


if __name__ == "__main__":
    main()
