"""Do temperatures from few validation rows help, and does a confidence chosen on few test rows keep its promise?

`python -m benchmarks.judgements.confidence FOLDER... --cache FOLDER` prints the tables of docs/fine-tuning.md.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.judgements import features
from tasks.learning import metrics, temperature
from tasks.report_page import chosen_confidence

_TRAIN_ROWS, _MODELS, _DRAWS = 300, 4, 8
_TEMPERATURE_ROWS, _TEST_ROWS = (25, 50, 100, 200), (60, 100, 200, 400, 800)
_SHRINKINGS = (0, 25, 50, 100)


def main() -> None:
    """Print both tables for each folder of photos."""
    for photos in features.of_command_line():
        models = list(_models(photos))
        for is_calibrated in (False, True):
            _print_temperatures(photos.name, models, is_calibrated=is_calibrated)
        _print_confidences(photos.name, models)


def _models(photos: features.Photos) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield logits and labels of the photos that a probe was not trained on."""
    generator = np.random.default_rng(0)
    for _ in range(_MODELS):
        order = generator.permutation(len(photos.labels))
        train, others = np.split(order, [min(_TRAIN_ROWS, len(order) // 2)])
        probe = features.probe(photos.features[train], photos.labels[train], num_classes=len(photos.classes))
        yield probe(photos.features[others]), photos.labels[others]


def _draws(models: list[tuple[np.ndarray, np.ndarray]], rows: int, count: int) -> Iterator[list[np.ndarray]]:
    """Yield logits and labels of `rows` random rows, then of all others."""
    generator = np.random.default_rng(rows)
    for logits, labels in models:
        for _ in range(count if len(labels) >= rows + 90 else 0):
            few, others = np.split(generator.permutation(len(labels)), [rows])
            yield [logits[few], labels[few], logits[others], labels[others]]


def _fitted(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature of the product, before it is shrunk."""
    shrunk = float(temperature.fit_temperature(torch.from_numpy(logits), torch.from_numpy(labels)))
    return float(shrunk ** ((len(labels) + temperature.SHRINKING) / len(labels)))


def _print_temperatures(name: str, models: list[tuple[np.ndarray, np.ndarray]], *, is_calibrated: bool) -> None:
    if is_calibrated:  # with the temperature of all rows, which none of the few may improve
        models = [(logits / _fitted(logits, labels), labels) for logits, labels in models]
    print(f"| {name}{', calibrated' * is_calibrated}: rows | T=1 | " + " | ".join(map(str, _SHRINKINGS)) + " |")
    for rows in _TEMPERATURE_ROWS:
        found = []
        for few, few_labels, logits, labels in _draws(models, rows, _DRAWS):
            fitted = math.log(_fitted(few, few_labels))
            powers = [0.0, *(fitted * rows / (rows + shrinking) for shrinking in _SHRINKINGS)]
            found.append([_errors(logits / math.exp(power), labels) for power in powers])
        if found:
            cells = [f"{error:.3f}, {loss:.3f}" for error, loss in np.mean(found, axis=0)]
            print(f"| {rows} | " + " | ".join(cells) + " |", flush=True)


def _errors(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the expected calibration error, and the cross-entropy."""
    summary = metrics.summary(labels, logits.argmax(1), _softmax(logits))
    return summary.expected_calibration_error, summary.test_loss


def _softmax(logits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(logits).softmax(1).numpy()


def _print_confidences(name: str, models: list[tuple[np.ndarray, np.ndarray]]) -> None:
    print(f"| {name}: test rows | by | promises | kept on other rows | right, worst tenth | share of images |")
    for rows in _TEST_ROWS:
        kept: dict[str, list[tuple[float, float, float]]] = {"rows alone": [], "lower bound": []}
        num_draws = 0
        for few, few_labels, logits, labels in _draws(models, rows, 100):
            num_draws += 1
            coverage = metrics.coverage(few.argmax(1) == few_labels, _softmax(few).max(1))
            confidence, is_right = _softmax(logits).max(1), logits.argmax(1) == labels
            goal, chosen = chosen_confidence(coverage)
            alone = next((row for row in coverage if row["rows"] and row["right"] >= 0.99 * row["rows"]), None)
            for by, share, row in (("rows alone", 0.99, alone), ("lower bound", goal, chosen)):
                above = is_right[confidence >= row["confidence"]] if row else is_right[:0]
                if len(above):
                    kept[by].append((share, above.mean(), len(above) / len(labels)))
        for by, promises in kept.items() if num_draws else ():
            goals, right, shares = np.array(promises or [(math.nan,) * 3]).T
            cells = f"{len(promises) / num_draws:.0%} | {(right >= goals).mean():.0%} | {np.quantile(right, 0.1):.3f}"
            print(f"| {rows} | {by}, {goals.mean():.3f} | {cells} | {shares.mean():.2f} |", flush=True)


if __name__ == "__main__":
    main()
