"""Placement of rows: a seed and the image alone decide, each row gets one place, and each class about its share."""

import hashlib

import numpy as np
import pandas as pd
import pytest

from tasks.jobs.preprocess import checks
from tasks.jobs.preprocess.job import assign_splits, random_keys

CLASS_SIZES = [500, 203, 30, 4]
"""Training rows of each class."""
KEYS = [14804455941960215590, 18151660869741957452, 6085514744501053108]
"""Of the numbers 0, 1 and 2**40 with seed 1. Prepared datasets that exist already were split and ordered by such keys:
other ones need another version of the kind `prepared` in `storage.kinds`."""


@pytest.fixture
def checked() -> pd.DataFrame:
    """Rows as the checks leave them: 737 for training, 100 for the test, four unusable ones among each."""
    frames = []
    for source, labels in (("train", np.repeat(np.arange(4), CLASS_SIZES)), ("test", np.arange(100) % 4)):
        row = np.arange(len(labels))
        reason = np.where(row % (len(labels) // 3) == 1, "label is missing", "")
        digest = [digest_of(f"{source} {number}") for number in row]
        columns = {"source": source, "row": row, "id": row * 3, "label": labels, "digest": digest, "reason": reason}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def digest_of(image: str) -> int:
    """A digest like that of an image, int64."""
    return int.from_bytes(hashlib.blake2b(image.encode(), digest_size=8).digest(), "little", signed=True)


def of_images(images: list[str], labels: list[int]) -> pd.DataFrame:
    """Usable training rows with these images."""
    row = np.arange(len(images))
    digest = [digest_of(image) for image in images]
    return pd.DataFrame({"source": "train", "row": row, "id": row, "label": labels, "digest": digest, "reason": ""})


def placed(checked: pd.DataFrame, *, seed: int = 0, validation_fraction: float = 0.1) -> pd.DataFrame:
    return assign_splits(checked, split_seed=seed, validation_fraction=validation_fraction)


class TestPlace:
    def test_every_usable_row_has_one_place_by_the_seed_and_no_other_has_any(self, checked: pd.DataFrame) -> None:
        usable = checked[checked["reason"] == ""]
        key = ["source", "row", "id", "label"]
        rows = placed(checked)
        pd.testing.assert_frame_equal(
            rows[key].sort_values(key, ignore_index=True), usable[key].sort_values(key, ignore_index=True)
        )
        pd.testing.assert_frame_equal(placed(checked.sample(frac=1, random_state=0)), rows)
        assert not placed(checked, seed=1).equals(rows)
        assert all(split["position"].tolist() == list(range(len(split))) for _, split in rows.groupby("split"))
        test = rows[rows["split"] == "test"]
        assert test["id"].tolist() == sorted(usable.loc[usable["source"] == "test", "id"])

    def test_every_class_gives_about_the_same_share_to_validation_and_at_least_one_row(
        self, checked: pd.DataFrame
    ) -> None:
        usable = checked[(checked["reason"] == "") & (checked["source"] == "train")]["label"].value_counts()
        assert usable.sort_index().tolist() == [497, 203, 30, 3]
        for seed in range(10):
            counts = placed(checked, seed=seed).groupby(["split", "label"], observed=True).size().unstack("label")
            expected, deviation = usable * 0.1, np.sqrt(usable * 0.1 * 0.9)
            assert ((counts.loc["validation"] - expected).abs() <= 4 * deviation + 1).all()
            assert (counts.loc[["train", "validation"]] >= 1).all().all()

    def test_rows_stay_on_their_side_when_others_are_added_and_removed_and_all_are_numbered_anew(
        self, checked: pd.DataFrame
    ) -> None:
        before = placed(checked[checked["source"] == "train"]).set_index("row")["split"].astype(str)
        remaining = checked[(checked["row"] % 5 > 0) & (checked["label"] < 3)]
        more = of_images([f"new {number}" for number in range(300)], [0, 1, 2] * 100).assign(row=range(2000, 2300))
        now = pd.concat([more, remaining], ignore_index=True)
        assigned = placed(now.assign(id=now.index))
        after = assigned[assigned["source"] == "train"].set_index("row")["split"].astype(str)
        kept = after[after.index < 2000]
        assert len(kept) > 550 and len(after) == len(kept) + 300
        assert kept.tolist() == before[kept.index].tolist()

    @pytest.mark.parametrize("size", [2, 20])
    def test_small_class_has_both_sides_and_equal_images_lie_on_one_even_in_two_classes(self, size: int) -> None:
        images = [f"{label} {number}" for label in "ab" for number in range(size)] + ["a 0", "a 1"] * 2
        labels = [0] * size + [1] * size + [0, 0, 1, 1]
        for seed in range(15):
            rows = of_images(images, labels)
            assigned = placed(rows, seed=seed).merge(rows[["row", "digest"]], on="row")
            assert assigned.groupby("digest")["split"].nunique().max() == 1
            assert assigned.groupby("label")["split"].nunique().tolist() == [2, 2]
            alone = placed(of_images(["a", "a", "b", "c", "d", "e"], [0, 0, 1, 1, 1, 1]), seed=seed)
            assert set(alone[alone["label"] == 0]["split"]) == {"train"}, "the only image of its class"


def test_key_of_a_number_is_the_same_for_ever() -> None:
    assert random_keys(np.array([0, 1, 2**40]), seed=1).tolist() == KEYS


def test_class_without_training_rows_is_refused_by_name(checked: pd.DataFrame) -> None:
    left = placed(checked[(checked["label"] != 2) | (checked["source"] == "test")])
    with pytest.raises(ValueError, match="no usable training rows of class two"):
        checks.check_complete(left, ("zero", "one", "two", "three"))
