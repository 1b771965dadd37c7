"""Metrics against cases that were worked out by hand."""

import math

import numpy as np
import pytest

from tasks.learning import metrics

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
CONFUSION = [[2, 0, 0], [1, 1, 0], [1, 1, 0]]


def one_class_each(*confidences: float) -> np.ndarray:
    """Probabilities of two classes, the first with the given ones."""
    return np.array([[confidence, 1 - confidence] for confidence in confidences])


class TestSummary:
    def test_accuracy_is_the_share_of_rows_predicted_right(self) -> None:
        assert metrics.summary(LABELS, PROBABILITIES)["test_accuracy"] == 3 / 6
        assert metrics.summary(LABELS, PROBABILITIES)["num_rows"] == 6

    def test_loss_is_the_mean_of_the_negative_logarithms(self) -> None:
        own = [0.75, 0.5, 0.25, 1.0, 0.25]
        found = metrics.summary(LABELS[:5], PROBABILITIES[:5])["test_loss"]
        assert found == pytest.approx(-sum(map(math.log, own)) / 5)

    def test_probability_zero_of_the_right_class_costs_much_but_not_infinitely_much(self) -> None:
        loss = metrics.summary(LABELS[5:], PROBABILITIES[5:])["test_loss"]
        assert loss == pytest.approx(126 * math.log(2))  # float32 has no normal number below 2**-126

    def test_calibration_error_weighs_each_bin_by_its_rows(self) -> None:
        # Bins by confidence: 0.5 three times, 1 right; 0.75 once, right; 1.0 twice, 1 right.
        expected = (3 * abs(0.5 - 1 / 3) + 1 * abs(0.75 - 1) + 2 * abs(1.0 - 1 / 2)) / 6
        assert metrics.summary(LABELS, PROBABILITIES)["expected_calibration_error"] == pytest.approx(expected)


class TestPerClass:
    def test_confusion_counts_true_class_by_predicted_class(self) -> None:
        found = metrics.confusion(LABELS, PROBABILITIES.argmax(1), num_classes=3)
        assert found.tolist() == CONFUSION

    def test_confusion_has_a_row_for_every_class_even_without_rows_of_the_last(self) -> None:
        assert metrics.confusion(np.array([0]), np.array([1]), num_classes=3).tolist() == [[0, 1, 0], [0] * 3, [0] * 3]

    def test_precision_recall_and_f1_are_those_worked_out_by_hand(self) -> None:
        first, second, _ = metrics.per_class(np.array(CONFUSION), ["a", "b", "c"])
        assert first == {
            "class_name": "a",
            "precision": 2 / 4,
            "recall": 2 / 2,
            "f1": pytest.approx(2 / 3),
            "support": 2,
        }
        assert second == {"class_name": "b", "precision": 1 / 2, "recall": 1 / 2, "f1": 0.5, "support": 2}

    def test_class_that_is_never_predicted_has_zeros(self) -> None:
        never = metrics.per_class(np.array(CONFUSION), ["a", "b", "c"])[2]
        assert never == {"class_name": "c", "precision": 0, "recall": 0, "f1": 0, "support": 2}

    def test_class_without_rows_has_zeros(self) -> None:
        absent = metrics.per_class(np.array([[1, 1], [0, 0]]), ["a", "b"])[1]
        assert absent == {"class_name": "b", "precision": 0, "recall": 0, "f1": 0, "support": 0}


class TestCalibration:
    def test_bins_are_fifteen_and_cover_all_probabilities(self) -> None:
        bins = metrics.calibration(LABELS, PROBABILITIES)
        assert len(bins) == 15
        assert [bin_["lower"] for bin_ in bins] == pytest.approx([number / 15 for number in range(15)])
        assert [bin_["upper"] for bin_ in bins] == [bin_["lower"] for bin_ in bins[1:]] + [1]
        assert sum(bin_["count"] for bin_ in bins) == len(LABELS)

    def test_bin_holds_the_confidence_and_accuracy_of_its_rows(self) -> None:
        bins = metrics.calibration(np.array([0, 1, 0]), one_class_each(0.76, 0.78, 0.95))
        assert bins[11] == pytest.approx(
            {"lower": 11 / 15, "upper": 12 / 15, "count": 2, "confidence": 0.77, "accuracy": 0.5}
        )

    def test_probability_of_exactly_one_is_in_the_last_bin(self) -> None:
        assert metrics.calibration(np.array([0]), one_class_each(1.0))[14]["count"] == 1

    @pytest.mark.parametrize("number", [8, 9, 12, 14])
    def test_probability_on_an_edge_is_in_the_bin_below(self, number: int) -> None:
        edge = metrics.calibration(np.array([0]), one_class_each(1.0))[number]["lower"]
        bins = metrics.calibration(np.array([0]), one_class_each(edge))
        assert [number for number, bin_ in enumerate(bins) if bin_["count"]] == [number - 1]

    def test_empty_bin_has_zeros(self) -> None:
        empty = metrics.calibration(np.array([0]), one_class_each(1.0))[3]
        assert (empty["count"], empty["confidence"], empty["accuracy"]) == (0, 0, 0)


class TestWorst:
    def test_surest_mistakes_come_first_and_equals_by_id(self) -> None:
        probabilities = one_class_each(0.6, 0.9, 0.9, 0.99, 0.7)
        found = metrics.worst(np.array([5, 9, 3, 1, 7]), np.array([1, 1, 1, 0, 1]), probabilities, count=3)
        assert [(row["id"], row["probability"]) for row in found] == [(3, 0.9), (9, 0.9), (7, 0.7)]
        assert {(row["label"], row["prediction"]) for row in found} == {(1, 0)}

    def test_no_mistakes_give_no_rows(self) -> None:
        assert metrics.worst(np.array([1]), np.array([0]), one_class_each(0.9), count=3) == []
