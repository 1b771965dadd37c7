"""Where rows go: decided by seed and ids alone, every row to one place, every class in the same share."""

import numpy as np
import pandas as pd
import pytest

from tasks.jobs import checks
from tasks.jobs.preprocess import place, random_keys

CLASS_SIZES = [500, 203, 30, 4]
"""Training rows of each class."""
KEYS = [14804455941960215590, 18151660869741957452, 6085514744501053108]
"""Of the ids 0, 1 and 2**40 with seed 1. Prepared datasets that exist already are in the order of such keys: other ones
need another VERSIONS["preprocess"] in `tasks.plan`."""


@pytest.fixture
def checked() -> pd.DataFrame:
    """Rows as the checks leave them: 737 for training, 100 for the test, four unusable ones among each."""
    frames = []
    for source, labels in (("train", np.repeat(np.arange(4), CLASS_SIZES)), ("test", np.arange(100) % 4)):
        row = np.arange(len(labels))
        reason = np.where(row % (len(labels) // 3) == 1, "label is missing", "")
        frames.append(pd.DataFrame({"source": source, "row": row, "id": row * 3, "label": labels, "reason": reason}))
    return pd.concat(frames, ignore_index=True)


def placed(checked: pd.DataFrame, *, seed: int = 0, validation_fraction: float = 0.1) -> pd.DataFrame:
    return place(checked, seed=seed, validation_fraction=validation_fraction)


def ids(placed: pd.DataFrame, split: str) -> list[int]:
    """The rows of `split` in their order."""
    here = placed[placed["split"] == split].sort_values("position")
    assert here["position"].tolist() == list(range(len(here)))
    return [int(number) for number in here["id"]]


class TestPlace:
    def test_every_usable_row_has_one_place_and_no_other_has_any(self, checked: pd.DataFrame) -> None:
        usable = checked[checked["reason"] == ""]
        key = ["source", "row", "id", "label"]
        found = placed(checked)[key].sort_values(key, ignore_index=True)
        pd.testing.assert_frame_equal(found, usable[key].sort_values(key, ignore_index=True))

    def test_every_class_gives_the_same_share_to_validation_and_at_least_one_row(self, checked: pd.DataFrame) -> None:
        usable = checked[(checked["reason"] == "") & (checked["source"] == "train")]["label"].value_counts()
        assert usable.sort_index().tolist() == [497, 203, 30, 3]
        counts = placed(checked).groupby(["split", "label"]).size().to_dict()
        assert [counts["validation", label] for label in range(4)] == [50, 20, 3, 1]
        assert [counts["train", label] for label in range(4)] == [447, 183, 27, 2]

    def test_test_rows_stay_in_the_order_of_their_ids(self, checked: pd.DataFrame) -> None:
        usable = checked[(checked["reason"] == "") & (checked["source"] == "test")]
        assert ids(placed(checked), "test") == sorted(usable["id"])

    def test_places_do_not_depend_on_the_order_of_the_input(self, checked: pd.DataFrame) -> None:
        shuffled = checked.sample(frac=1, random_state=0)
        pd.testing.assert_frame_equal(placed(shuffled), placed(checked))

    def test_places_do_not_depend_on_how_rows_are_numbered(self, checked: pd.DataFrame) -> None:
        renumbered = checked.assign(row=checked["row"] + 7)
        assert ids(placed(renumbered), "train") == ids(placed(checked), "train")

    @pytest.mark.parametrize("split", ["train", "validation"])
    def test_seed_decides_split_and_order(self, checked: pd.DataFrame, split: str) -> None:
        some, again, other = (ids(placed(checked, seed=seed), split) for seed in (0, 0, 1))
        assert some == again
        assert sorted(some) != sorted(other)

    def test_order_of_training_rows_is_mixed_over_all_classes(self, checked: pd.DataFrame) -> None:
        train = placed(checked)
        labels = train[train["split"] == "train"].sort_values("position")["label"].to_numpy()
        halves = [(half == 0).mean() for half in np.array_split(labels, 2)]
        assert halves == pytest.approx([447 / 659] * 2, abs=0.08)  # a sorted order would give 1.0 and 0.36


class TestRandomKeys:
    def test_million_ids_have_different_keys_spread_evenly(self) -> None:
        keys = random_keys(np.arange(1_000_000), seed=0)
        assert (str(keys.dtype), len(np.unique(keys))) == ("uint64", 1_000_000)
        counts = np.histogram(keys.astype(np.float64), bins=64, range=(0, 2.0**64))[0]
        assert counts.min() > 15_000 and counts.max() < 16_250  # 15,625 in each, give or take five deviations

    def test_key_of_an_id_is_the_same_for_ever(self) -> None:
        assert random_keys(np.array([0, 1, 2**40]), seed=1).tolist() == KEYS

    def test_neighbouring_seeds_give_unrelated_orders(self) -> None:
        one, two = (pd.Series(random_keys(np.arange(1000), seed=seed)) for seed in (0, 1))
        assert abs(one.rank().corr(two.rank())) < 0.1

    def test_huge_seed_is_no_problem(self) -> None:
        assert len(np.unique(random_keys(np.arange(100), seed=2**80 + 1))) == 100


def test_class_without_training_rows_is_refused_by_name(checked: pd.DataFrame) -> None:
    left = placed(checked[(checked["label"] != 2) | (checked["source"] == "test")])
    with pytest.raises(ValueError, match="no training row is left of class two"):
        checks.check_complete(left, ("zero", "one", "two", "three"))
