"""Metrics against cases that were worked out by hand; the temperature of probabilities changes no class."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tasks.learning import metrics
from tasks.learning.modeling import fit_temperature

# Six rows, three classes; class 2 is never predicted. Right: rows 0, 1, 3.
LABELS = np.array([0, 0, 1, 1, 2, 2])
PROBABILITIES = np.array(
    [
        [0.75, 0.25, 0.00],
        [0.50, 0.25, 0.25],
        [0.50, 0.25, 0.25],
        [0.00, 1.00, 0.00],
        [0.25, 0.50, 0.25],
        [1.00, 0.00, 0.00],
    ]
)
PREDICTIONS = PROBABILITIES.argmax(1)
SUMMARY = metrics.summary(LABELS, PREDICTIONS, PROBABILITIES)
CONFUSION = [[2, 0, 0], [1, 1, 0], [1, 1, 0]]


class TestSummary:
    def test_probability_zero_of_the_right_class_costs_much_but_not_infinitely_much(self) -> None:
        loss = metrics.summary(LABELS[5:], PREDICTIONS[5:], PROBABILITIES[5:]).test_loss
        assert loss == pytest.approx(126 * math.log(2))  # float32 has no normal number below 2**-126

    def test_calibration_error_weighs_each_bin_by_its_rows(self) -> None:
        # Bins by confidence: 0.5 three times, 1 right; 0.75 once, right; 1.0 twice, 1 right.
        expected = (3 * abs(0.5 - 1 / 3) + 1 * abs(0.75 - 1) + 2 * abs(1.0 - 1 / 2)) / 6
        assert SUMMARY.expected_calibration_error == pytest.approx(expected)


class TestScores:
    def test_every_class_with_rows_counts_the_same_in_balanced_accuracy_and_macro_f1(self) -> None:
        # Recalls 2/2, 1/2, 0/2; F1 2*2/(2+4), 2*1/(2+2), 0.
        assert metrics.scores(LABELS, PREDICTIONS, num_classes=3) == pytest.approx(
            {"test_accuracy": 3 / 6, "balanced_accuracy": 1 / 2, "macro_f1": (2 / 3 + 1 / 2 + 0) / 3}
        )
        assert SUMMARY.scores() == metrics.scores(LABELS, PREDICTIONS, num_classes=3)

    @pytest.mark.parametrize("other", [2, -1], ids=["without rows", "that only the model knows"])
    def test_prediction_of_a_class_without_rows_is_wrong_and_that_class_is_not_averaged(self, other: int) -> None:
        computed = metrics.scores(np.array([0, 0, 1, 1]), np.array([0, other, 1, 1]), num_classes=3)
        assert computed == pytest.approx(
            {"test_accuracy": 3 / 4, "balanced_accuracy": (1 / 2 + 1) / 2, "macro_f1": (2 / 3 + 1) / 2}
        )


class TestCoverage:
    def test_rows_of_each_confidence_and_above_are_counted_with_the_correct_ones(self) -> None:
        computed = metrics.coverage(np.array([True, False, True, True]), np.array([0.92, 0.5, 0.91, 1.0], np.float32))
        counts = {row["confidence"]: (row["rows"], row["right"]) for row in computed}
        assert len(computed) == 100 and [counts[at] for at in (0.0, 0.5, 0.51, 0.92, 0.93)] == [
            (4, 3), (4, 3), (3, 3), (2, 2), (1, 1)
        ]  # fmt: skip


class TestPerClass:
    def test_precision_recall_and_f1_are_those_worked_out_by_hand(self) -> None:
        first, second, never = metrics.per_class(np.array(CONFUSION), ["a", "b", "c"])
        assert list(first.values()) == ["a", 2 / 4, 2 / 2, pytest.approx(2 / 3), 2]
        assert never == {"class_name": "c", "precision": 0, "recall": 0, "f1": 0, "support": 2}
        assert second == {"class_name": "b", "precision": 1 / 2, "recall": 1 / 2, "f1": 0.5, "support": 2}


class TestCalibration:
    def test_bin_holds_the_confidence_and_accuracy_of_its_rows(self) -> None:
        bins = metrics.calibration(np.array([True, False, True]), np.array([0.76, 0.78, 0.95]))
        assert bins[11] == pytest.approx(
            {"lower": 11 / 15, "upper": 12 / 15, "count": 2, "confidence": 0.77, "accuracy": 0.5}
        )

    @pytest.mark.parametrize("number", [8, 14])
    def test_probability_on_an_edge_is_in_the_bin_below(self, number: int) -> None:
        edge = metrics.calibration(np.array([True]), np.array([1.0]))[number]["lower"]
        bins = metrics.calibration(np.array([True]), np.array([edge]))
        assert [number for number, bin_ in enumerate(bins) if bin_["count"]] == [number - 1]


class TestWorst:
    def test_surest_mistakes_come_first_and_equals_by_id(self) -> None:
        ids, labels, confidence = np.array([5, 9, 3, 1, 7]), np.array([1, 1, 1, 0, 1]), [0.6, 0.9, 0.9, 0.99, 0.7]
        computed = metrics.worst(ids, labels, np.zeros(5, int), np.array(confidence), count=3)
        assert [(row["id"], row["probability"]) for row in computed] == [(3, 0.9), (9, 0.9), (7, 0.7)]
        assert {(row["label"], row["prediction"]) for row in computed} == {(1, 0)}


def rows(count: int, *, times: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels that are drawn by their probabilities; then the logits are multiplied by `times`."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return times * logits, labels


@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_temperature_undoes_wrong_confidence(times: float) -> None:
    logits, labels = rows(20_000, times=times)
    temperature = float(fit_temperature(logits, labels))
    assert temperature == pytest.approx(times, rel=0.03)
    assert torch.equal((logits / temperature).argmax(1), logits.argmax(1))
    if times != 1:
        assert cross_entropy(logits / temperature, labels) < cross_entropy(logits, labels) - 0.05


def test_rows_that_are_all_right_do_not_make_every_probability_one() -> None:
    labels = torch.arange(30) % 3
    logits = torch.nn.functional.one_hot(labels, 3).float()
    temperature = float(fit_temperature(logits, labels))
    assert 0.6 < float((logits / temperature).softmax(1).max()) < 0.9


def test_few_rows_change_probabilities_little_and_none_keep_them() -> None:
    temperatures = [float(fit_temperature(*rows(count, times=3.0))) for count in (20, 100, 1000)]
    assert 1 < temperatures[0] < 1.3 < temperatures[1] < 2.2 < 2.5 < temperatures[2] < 3
    assert float(fit_temperature(torch.empty(0, 5), torch.empty(0, dtype=torch.int64))) == 1


def test_a_distance_keeps_at_least_its_share_of_rows_and_says_how_many_of_them_are_right() -> None:
    distance = (np.arange(100) / 100).round(4).astype(np.float32)
    is_right = np.arange(100) % 10 > 0
    kept = metrics.kept_by_distance(is_right, distance)
    assert [row["distance"] for row in kept] == [0.99, 0.99, 0.95, 0.9]
    assert [(row["right"], row["wrong"]) for row in kept] == [(90, 10), (90, 10), (86, 10), (81, 10)]
