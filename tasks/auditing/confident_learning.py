"""Confident learning (Northcutt et al. 2021): rows whose label is probably wrong, from out-of-fold probabilities.

Its three steps are to count wrong labels, to rank rows, and to prune as many of the worst. Here maximum likelihood
counts, in place of thresholds that take many mistakes of the model for wrong labels.
"""

import dataclasses

import numpy as np

_TEMPERATURES = np.geomspace(0.1, 10, 81)
_MOST = 0.5
"""Highest share of wrong labels."""
_HALVINGS = 30
_EVIDENCE = 2.0
"""How much likelier, as a logarithm, labels must be with wrong ones than without any: a weak model, or one that knows
nothing, fits its own mistakes by calling labels wrong. 1.92 is the 95 % quantile of the likelihood ratio test."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelNoise:
    """How labels came about: the true class is as a model says at `temperature`, then some labels were changed."""

    rate: float
    """Share of labels that are not the true class, but any of the others."""
    temperature: float
    """Logarithms of the probabilities are divided by it. Wrong labels among its validation rows make a model look as if
    it were too sure of all, and its own temperature makes up for it."""

    def tempered(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the probabilities of the true class, float64 (N, classes)."""
        return _tempered(_logits(probabilities), self.temperature)

    def wrong(self, own: np.ndarray, *, num_classes: int) -> np.ndarray:
        """Return the probability that each label is wrong, (N,), by the tempered probability of its class."""
        wrong = self.rate * (1 - own) / (num_classes - 1)
        return np.asarray(wrong / (wrong + (1 - self.rate) * own + np.finfo(float).tiny))


def fit(labels: np.ndarray, probabilities: np.ndarray) -> LabelNoise:
    """Find the label noise under which the labels are most likely.

    Args:
        labels: int64 (N,).
        probabilities: Those of all classes, (N, classes), by models that were not trained on the rows.
    """
    logits, num_classes = _logits(probabilities), probabilities.shape[1]
    fits, without = [], -len(labels) * np.log(num_classes)
    for temperature in _TEMPERATURES:
        own = _tempered(logits, temperature)[np.arange(len(labels)), labels]
        without = max(without, np.log(own + np.finfo(float).tiny).sum())
        other = (1 - own) / (num_classes - 1)
        rate = _most_likely_rate(own, other)
        likelihood = np.log(rate * other + (1 - rate) * own + np.finfo(float).tiny).sum()
        fits.append((likelihood, LabelNoise(rate=rate, temperature=float(temperature))))
    likelihood, noise = max(fits, key=lambda each: each[0])
    return noise if likelihood > without + _EVIDENCE else dataclasses.replace(noise, rate=0.0)


def _most_likely_rate(own: np.ndarray, other: np.ndarray) -> float:
    """Return where the logarithm of the likelihood, which is concave in the rate, has no slope."""
    low, high = 0.0, _MOST
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        slope = ((other - own) / (rate * other + (1 - rate) * own)).sum()
        low, high = (rate, high) if slope > 0 else (low, rate)
    return low


def _logits(probabilities: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.maximum(probabilities, np.finfo(np.float32).tiny, dtype=np.float64)))


def _tempered(logits: np.ndarray, temperature: float) -> np.ndarray:
    scaled = np.exp((logits - logits.max(1, keepdims=True)) / temperature)
    return np.asarray(scaled / scaled.sum(1, keepdims=True))
