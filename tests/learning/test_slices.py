"""Slices that are named are worse, and hardly ever is one named by chance."""

import itertools

import numpy as np
import pandas as pd
import pytest

from storage.statistics import Slice
from tasks.learning import slices

ROWS = 600
CLASSES = 5


def facts(generator: np.random.Generator, *, rows: int = ROWS) -> pd.DataFrame:
    """Five facts of rows, in slices of all sizes that overlap."""
    chances = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.01])
    names = np.array([f"number {number}" for number in range(len(chances))])
    return pd.DataFrame({fact: generator.choice(names, rows, p=chances) for fact in "abcde"})


def worse_slices(result: list[Slice]) -> list[tuple[str, str]]:
    return [(entry.fact, entry.value) for entry in slices.worse(result)]


def test_planted_slice_is_named_and_no_other() -> None:
    generator = np.random.default_rng(0)
    known, labels = facts(generator), generator.integers(0, CLASSES, ROWS)
    chance = np.where(known["b"] == "number 4", 0.5, 0.9)
    result = slices.find(known, labels, generator.random(ROWS) < chance)
    assert worse_slices(result) == [("b", "number 4")]
    entry = slices.worse(result)[0]
    assert entry.others and entry.p_value and entry.p_corrected
    assert entry.accuracy < 0.7 < 0.85 < entry.others and entry.p_value < entry.p_corrected < 0.05
    assert entry.interval[0] < entry.accuracy < entry.interval[1]
    assert slices.describe(entry).startswith(f"b number 4: accuracy {entry.accuracy:.4f} of {entry.rows} rows")


@pytest.mark.parametrize("accuracy", [0.5, 0.9])
def test_random_predictions_name_a_slice_in_at_most_five_percent_of_evaluations(accuracy: float) -> None:
    wrongly = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        known, labels = facts(generator), generator.integers(0, CLASSES, ROWS)
        wrongly += bool(worse_slices(slices.find(known, labels, generator.random(ROWS) < accuracy)))
    assert wrongly <= 3


def test_slice_of_a_hard_class_is_not_worse_for_that() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, ROWS)
    is_right = generator.random(ROWS) < np.where(labels == 0, 0.5, 0.95)
    only, mostly = (labels == 0) & (generator.random(ROWS) < 0.5), generator.random(ROWS) < np.where(labels, 0.1, 0.9)
    known = pd.DataFrame({"only": only, "mostly": mostly, "whole": labels}).astype(str)
    result = slices.find(known, labels, is_right)
    assert worse_slices(result) == []
    by_name = {(entry.fact, entry.value): entry for entry in result}
    assert by_name["mostly", "True"].accuracy < 0.65 < by_name["mostly", "False"].accuracy
    assert by_name["whole", "0"].p_value is None and by_name["whole", "0"].others is None


def test_p_value_is_the_share_of_all_ways_to_draw_the_wrong_rows() -> None:
    labels, is_in = np.array([0] * 5 + [1] * 6), np.array([1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0], bool)
    is_right = np.array([0, 0, 1, 1, 1, 0, 1, 1, 0, 1, 1], bool)
    ways = [
        sum(is_in[list(first + second)])
        for first in itertools.combinations(range(5), 2)
        for second in itertools.combinations(range(5, 11), 2)
    ]
    result = slices.compare(is_in, labels, is_right)
    assert result["p_value"] == pytest.approx(np.mean(np.array(ways) >= 3))


def test_values_of_few_rows_and_a_fact_of_one_value_are_no_slices() -> None:
    many = [f"folder {number:02}" for number in range(30) for _ in range(25)]
    known = pd.DataFrame({"one": ["x"] * 770, "many": [*many, *(["rare"] * 19), None]})
    result = slices.find(known, np.zeros(770, int), np.arange(770) % 3 > 0)
    assert [entry.value for entry in result] == [f"folder {number:02}" for number in range(20)]
    assert slices.find(pd.DataFrame(index=range(3)), np.zeros(3, int), np.ones(3, bool)) == []
