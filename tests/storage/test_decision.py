"""Difference of two models' accuracies: compared with full enumeration, printed, and stored."""

import itertools
import math

import pytest

from storage.decision import Difference, interval, p_value


def test_the_p_value_is_the_share_of_all_outcomes_that_are_as_uneven_or_more_also_of_many_rows() -> None:
    for one, other in ((0, 0), (0, 1), (3, 3), (6, 0), (7, 4)):
        uneven = [abs(sum(signs)) >= abs(one - other) for signs in itertools.product((1, -1), repeat=one + other)]
        assert p_value(one, other) == sum(uneven) / len(uneven)
    assert p_value(5_000, 5_000) == 1.0
    assert p_value(10_000, 9_000) == pytest.approx(math.erfc(999 / math.sqrt(2 * 19_000)), rel=0.02)  # of the normal
    assert 0 < p_value(600, 0) < 1e-170


@pytest.mark.parametrize("num_rows", [20, 60])
@pytest.mark.parametrize(("one", "other"), [(0.1, 0.1), (0.05, 0.02), (0.3, 0.05)])
def test_the_interval_holds_the_true_difference_about_95_times_in_100(num_rows: int, one: float, other: float) -> None:
    covered = 0.0
    for first in range(num_rows + 1):
        for second in range(num_rows + 1 - first):
            ways = math.comb(num_rows, first) * math.comb(num_rows - first, second)
            chance = ways * one**first * other**second * (1 - one - other) ** (num_rows - first - second)
            lower, upper = interval(first, second, num_rows=num_rows)
            covered += chance * (lower <= one - other <= upper)
    assert 0.935 < covered < 1, "for few rows rather too wide than too narrow"


def test_all_of_it_is_said_in_a_line_and_read_again() -> None:
    found = Difference.of(only_challenger=3, only_rival=2, num_rows=60)
    assert str(found) == (
        "difference in test accuracy +0.0167 (95 % interval -0.0674 to +0.0997, exact test p = 1); of 60 rows, 3 "
        "are correct only with this model, 2 only with the other"
    )
    assert Difference.model_validate_json(found.model_dump_json()) == found
