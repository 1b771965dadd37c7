"""How good is the model in use in a year of nights, by rule of promotion, and how soon is a better model promoted?

`python -m benchmarks.promotion FOLDER... [--years N] [--cache DIR]` prints the tables of docs/promotion.md. A folder
has a folder of photos per class. Each night a linear model is fitted to the embeddings of `images-probe`, of a random
part of the photos, so that the models of two nights differ about as much as two models of `images-finetune`. The gate's
own function decides. `--cache` keeps the embeddings for the next time.
"""

import argparse
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.unknown_things import embedder, photos_of, read
from tasks.learning.recipes import Gate
from tasks.promotion.gate import is_enough
from tasks.promotion.significance import mcnemar_test

NIGHTS, TEST_ROWS = 365, (40, 150, 1000)
"""Nights of a year, and test rows on the first night, which has four times as many photos to learn from."""
RULES = {
    "newest": Gate(tolerance=1.0),
    "not worse": Gate(max_p_value=0.0),
    "tolerance=0.03": Gate(tolerance=0.03),
    "max_p_value=0.2": Gate(max_p_value=0.2),
    "max_p_value=0.05": Gate(max_p_value=0.05),
}
_MOST_PHOTOS, _MOST_HELD_OUT, _DIMENSIONS = 12_000, 2_000, 128
_SHARE = 0.75
"""Share of the photos that a model learns from, drawn anew each night."""
_PENALTY, _OTHER_PENALTY = 300.0, 30.0
"""L2 penalty of a recipe, and of another one."""
_ITERATIONS, _NUMBERS_AT_ONCE = 40, 10_000_000
"""Of a fit, and logits in memory."""
_BAD_WEEKS, _WRONG = 4, 0.3
"""Weeks of a year in which this share of all labels is wrong."""
_POOL, _POOL_ROWS = 60, 300
"""Equally good models, and photos that the champion among them learned from."""
_POINTS = (0, 1, 2, 5, -5)
"""Accuracy of the new models minus the champion's, in points."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Photos:
    """Photos in a random order, from a folder that has a folder per class."""

    name: str
    features: torch.Tensor
    """1, and principal components of standardized embeddings; float32, (photos, 1 + dimensions)."""
    variances: torch.Tensor
    """Of the features, 1 of the first; float32, (1 + dimensions,)."""
    labels: np.ndarray
    """int64, (photos,)."""
    num_classes: int


Cells = dict[str, dict[str, float]]
"""Numbers of a table, by row and column."""


def main() -> None:
    """Print the tables of each folder, then of all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promotion")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--years", type=int, default=10, help="years of each folder and number of test rows")
    parser.add_argument("--cache", type=Path, help="folder to keep the embeddings in")
    options, tables = parser.parse_args(), defaultdict[str, list[Cells]](list)
    for folder in options.folders:
        photos = read_photos(folder, options.cache)
        for name, cells in (*years_of(photos, options.years).items(), *series_of(photos, options.years)):
            tables[name].append(cells)
            print(f"\n{photos.name}: {name}\n\n{markdown(cells)}", flush=True)
    for name, several in tables.items():
        rows = {row: [cells[row] for cells in several if row in cells] for cells in several for row in cells}
        print(f"\nall folders: {name}\n\n{markdown({row: middle(of) for row, of in rows.items()})}")


def middle(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return for each column the mean, for a number of nights the median."""
    middles = {column: np.median if column.startswith("nights") else np.mean for column in several[0]}
    return {column: float(of([cells[column] for cells in several])) for column, of in middles.items()}


def markdown(cells: Mapping[str, Mapping[str, float]]) -> str:
    columns = next(iter(cells.values()))
    lines = [f"| test rows | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    lines += [f"| {row} | {' | '.join(f'{value:.3g}' for value in of.values())} |" for row, of in cells.items()]
    return "\n".join(lines)


def read_photos(folder: Path, cache: Path | None) -> Photos:
    """Compute the embeddings of the photos, at most `_MOST_PHOTOS`; the same bytes count once."""
    kept = cache / f"{folder.name}.npz" if cache else None
    if kept and kept.exists():
        content = np.load(kept)
        vectors, labels = content["vectors"], content["labels"]
    else:
        paths = [*{path.read_bytes(): path for path in photos_of(folder, _MOST_PHOTOS)}.values()]
        labels, backbone = np.unique([path.parent.name for path in paths], return_inverse=True)[1], embedder()
        pieces = [backbone.embeddings(read(paths[start : start + 500])) for start in range(0, len(paths), 500)]
        vectors = np.concatenate(pieces)
        if kept:
            np.savez(kept, vectors=vectors, labels=labels)
    vectors = (vectors - vectors.mean(0, dtype=float)) / (vectors.std(0, dtype=float) + 1e-6)
    variances, axes = (of[..., -_DIMENSIONS:] for of in np.linalg.eigh(vectors.T @ vectors / len(vectors)))
    return Photos(
        name=folder.name,
        features=torch.from_numpy(np.insert(vectors @ axes, 0, 1, axis=1)).float(),
        variances=torch.from_numpy(np.insert(variances, 0, 1)).float(),
        labels=labels,
        num_classes=int(labels.max()) + 1,
    )


def fit(photos: Photos, rows: np.ndarray, labels: np.ndarray, is_used: np.ndarray, penalty: float) -> np.ndarray:
    """Fit logistic regressions by Nesterov's method; return the class that each gives each photo, (models, photos).

    Args:
        photos: All photos.
        rows: Photos that some model learns from, int64 (N,).
        labels: Labels of all photos, for each model: int64 (models, photos).
        is_used: Which of `rows` each model learns from, bool (models, N).
        penalty: L2 penalty.
    """
    most = max(1, _NUMBERS_AT_ONCE // len(photos.labels) // photos.num_classes)
    if len(labels) > most:
        parts = (slice(start, start + most) for start in range(0, len(labels), most))
        return np.concatenate([fit(photos, rows, labels[part], is_used[part], penalty) for part in parts])
    inputs, targets = photos.features[rows], torch.from_numpy(labels[:, rows].T.copy())[..., None]
    shape = (len(rows), len(labels), photos.num_classes)
    shares = torch.from_numpy(is_used.T / is_used.sum(1)).float()[..., None]
    penalties = torch.from_numpy(penalty / is_used.sum(1)).float()[:, None].repeat(inputs.shape[1], 1, 1)
    penalties[0] = 0  # of the bias
    steps = 0.7 / (photos.variances[:, None, None] / 2 + penalties)
    weights = ahead = torch.zeros(inputs.shape[1], *shape[1:])
    for iteration in range(_ITERATIONS):
        errors = torch.softmax((inputs @ ahead.flatten(1)).view(shape), 2)
        errors = errors.scatter_add_(2, targets, torch.full(shape, -1.0)).mul_(shares)
        before, slopes = weights, (inputs.T @ errors.flatten(1)).view_as(ahead) + penalties * ahead
        weights = ahead - steps * slopes
        ahead = weights + iteration / (iteration + 3) * (weights - before)
    classes: np.ndarray = (photos.features @ weights.flatten(1)).view(-1, *shape[1:]).argmax(2).T.numpy()
    return classes.astype(np.int8)


def follow(predictions: np.ndarray, labels: np.ndarray, num_rows: np.ndarray, rule: Gate) -> np.ndarray:
    """Return the night whose model is in use on each night, int64 (nights,).

    Args:
        predictions: Classes of the test rows by the model of each night, (nights, rows).
        labels: Their labels on each night, (nights, rows).
        num_rows: How many there are on each night, (nights,).
        rule: The gate's settings.
    """
    in_use, num_before = [0], 0
    for night in range(1, len(predictions)):
        rows = slice(num_rows[night])
        is_right, was_right = (predictions[model, rows] == labels[night, rows] for model in (night, in_use[-1]))
        better, worse = int((is_right & ~was_right).sum()), int((was_right & ~is_right).sum())
        limits = {"max_p_value": rule.max_p_value or 0.0, "tolerance": rule.tolerance}
        difference = (better - worse) / int(num_rows[night])
        promoted = is_enough(difference, _p_value(better, worse), **limits, num_before=num_before)
        in_use.append(night if promoted else in_use[-1])
        num_before = 0 if promoted else num_before + 1
    return np.array(in_use)


_p_value = functools.cache(mcnemar_test)


def years_of(photos: Photos, num_years: int) -> dict[str, Cells]:
    """Return tables: mean accuracy, on photos held out, of the model in use, by test rows and rule."""
    tables = defaultdict[str, Cells](dict)
    for at_first in TEST_ROWS:
        several = defaultdict[tuple[str, str], list[dict[str, float]]](list)
        is_possible = 10 * at_first + _MOST_HELD_OUT // 2 <= len(photos.labels)
        for seed in range(max(2, num_years * 150 // max(150, at_first)) * is_possible):
            for name, kind, accuracies in a_year(photos, at_first, np.random.default_rng(seed)):
                several[name, kind].append(accuracies)
        for (name, kind), of in several.items():
            tables[name][f"{at_first:,}, {kind}"] = middle(of)
    return tables


def a_year(photos: Photos, at_first: int, draw: np.random.Generator) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield what the year is like, what the test set is, and the accuracy by rule, of a year in which photos double."""
    test, train, held_out = np.split(draw.permutation(len(photos.labels)), [2 * at_first, 10 * at_first])
    growth = np.linspace(1, 2, NIGHTS)
    is_used = (np.arange(len(train)) < 4 * at_first * growth[:, None]) & (draw.random((NIGHTS, len(train))) < _SHARE)
    truth = np.tile(photos.labels, (NIGHTS, 1))
    usual, other = (fit(photos, train, truth, is_used, penalty) for penalty in (_PENALTY, _OTHER_PENALTY))
    weeks, labels, bad = draw.choice(np.arange(1, 52), _BAD_WEEKS, replace=False), truth.copy(), usual.copy()
    nights = (7 * weeks[:, None] + np.arange(7)).ravel()
    for week in weeks:
        wrong = draw.random(len(photos.labels)) < _WRONG
        moved = photos.labels + wrong * draw.integers(1, photos.num_classes, len(wrong))
        labels[7 * week : 7 * week + 7] = moved % photos.num_classes
    bad[nights] = fit(photos, train, labels[nights], is_used[nights], _PENALTY)
    years = {
        "a usual year": (usual, truth, slice(None)),
        "a year with bad weeks": (bad, labels, slice(None)),
        "the bad weeks": (bad, labels, nights),
        "another penalty since night 2, 30 to 300": (np.vstack([other[:1], usual[1:]]), truth, slice(None)),
        "another penalty since night 2, 300 to 30": (np.vstack([usual[:1], other[1:]]), truth, slice(None)),
    }
    held_out = held_out[:_MOST_HELD_OUT]
    for name, (models, at_night, which) in years.items():
        accuracies = (models[:, held_out] == photos.labels[held_out]).mean(1)
        for kind in ("growing", "fixed"):
            is_growing = kind == "growing"
            num_rows = (at_first * (growth if is_growing else np.ones(NIGHTS))).astype(int)
            judged = models[:, test], (at_night if is_growing else truth)[:, test], num_rows
            yield name, kind, {rule: accuracies[follow(*judged, gate)][which].mean() for rule, gate in RULES.items()}


def series_of(photos: Photos, num_years: int) -> Iterator[tuple[str, Cells]]:
    """Yield a table by rule: what becomes of models that are all equally good, or better or worse than the champion."""
    draw = np.random.default_rng(0)
    train, test = np.split(draw.permutation(len(photos.labels)), [1500])
    truth, sizes = np.tile(photos.labels, (_POOL, 1)), np.geomspace(60, 1500, 12)

    def pool(size: float) -> np.ndarray:
        is_used = (np.arange(1500) < size) & (draw.random((_POOL, 1500)) < _SHARE)
        is_right: np.ndarray = fit(photos, train, truth, is_used, _PENALTY)[:, test] == photos.labels[test]
        return is_right

    curve = np.poly1d(np.polyfit(np.log(sizes), [pool(size).mean() for size in sizes], 2))
    accuracies = {points: curve(np.log(_POOL_ROWS)) + points / 100 for points in _POINTS}
    grid = np.geomspace(sizes[0], sizes[-1], 1000)
    pools = {
        points: pool(grid[abs(curve(np.log(grid)) - accuracy).argmin()]) for points, accuracy in accuracies.items()
    }
    differences = ", ".join(f"{pool.mean() - pools[0].mean():+.3f}" for pool in pools.values())
    for rule in ("not worse", "max_p_value=0.05"):
        cells = {
            f"{at_first:,}, {kind}": middle(
                [_outcomes(pools, num_rows * at_first, RULES[rule], seed) for seed in range(5 * num_years)]
            )
            for at_first in TEST_ROWS
            if 2 * at_first <= len(test)
            for kind, num_rows in (("growing", np.linspace(1, 2, NIGHTS)), ("fixed", np.ones(NIGHTS)))
        }
        yield f"series of models, {rule}", cells
    print(f"\n{photos.name}: accuracy of the champion {pools[0].mean():.3f}, of the others {differences}")


def _outcomes(pools: Mapping[int, np.ndarray], num_rows: np.ndarray, rule: Gate, seed: int) -> dict[str, float]:
    """Return how often a model was promoted in a year of nights, and how soon; `NIGHTS` if it was not."""
    outcomes, draw = dict[str, float](), np.random.default_rng(seed)
    test = draw.permutation(pools[0].shape[1])[: int(num_rows[-1])]
    for points, pool in pools.items():
        first, others = draw.integers(_POOL), draw.integers(_POOL, size=NIGHTS - 1 if points >= 0 else 1)
        models = np.vstack([pools[0][first], pool[others]])[:, test]
        in_use = follow(models, np.ones_like(models), num_rows.astype(int), rule)
        model_in_use = np.insert(others, 0, -1 if points else first)[in_use]  # the champion itself is no promotion
        promoted = np.flatnonzero(np.diff(model_in_use))
        if points > 0:
            outcomes[f"nights until {points:+d}"] = promoted[0] + 1 if len(promoted) else NIGHTS
        else:
            outcomes["equal, in a year" if points == 0 else f"{points:+d}, at once"] = len(promoted)
    return outcomes


if __name__ == "__main__":
    main()
