"""New images are compared with test rows: what differs is found, and nothing else."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tasks.comparing import drift


def rows(seed: int, count: int, *, farther: float = 0.0, shares: tuple[float, ...] = (0.5, 0.3, 0.2)) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "prediction": draw.choice(len(shares), count, p=shares),
            "distance": (draw.beta(4, 8, count) + farther).round(4),
        }
    )


@pytest.mark.parametrize(
    ("new", "is_drift", "summary"),
    [
        ({"count": 100}, False, "none found: 100 new images, 80 test rows, p "),
        (
            {"count": 100, "farther": 0.2},
            True,
            r"yes, farther from the model's images \(median distance 0\.5\d\d, test",
        ),
        ({"count": 100, "farther": -0.2}, False, "none found"),
        ({"count": 100, "shares": (0.2, 0.2, 0.6)}, True, "yes, other shares of classes: 100 new images, 80 test rows"),
        ({"count": 100, "farther": 0.2, "shares": (0, 0, 0, 1)}, True, r"yes, farther .*\) and other shares"),
        ({"count": 29, "farther": 0.5}, None, "too few to compare: 29 new images, 80 test rows; at least 30 each"),
    ],
    ids=["same", "farther", "nearer", "classes", "both", "few"],
)
def test_what_differs_is_said_in_one_line(new: dict[str, Any], is_drift: bool | None, summary: str) -> None:
    found = drift.compare(rows(1, **new), rows(2, 80))
    assert found["is_drift"] is is_drift and pd.Series(found["summary"]).str.match(summary).all()
    assert (found["p_distance"] is None) == (is_drift is None) and "\n" not in found["summary"]


def test_test_rows_of_a_single_class_are_compared_by_distance_alone() -> None:
    found = drift.compare(rows(1, 40, shares=(1,)), rows(2, 40, shares=(1,)))
    assert found["p_classes"] == 1.0 and not found["is_drift"]


def test_few_batches_like_the_test_rows_are_reported_even_if_classes_are_rare() -> None:
    shares = tuple(np.full(40, 1 / 40))
    alarms = [
        drift.compare(rows(2 * seed, 30, shares=shares), rows(2 * seed + 1, 60, shares=shares)) for seed in range(200)
    ]
    assert sum(alarm["is_drift"] for alarm in alarms) <= 200 * drift.FALSE_ALARMS
