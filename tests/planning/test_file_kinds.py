"""Kinds of files by their names, as the check of a user's folder sees them."""

from pathlib import Path

import pytest

from storage.uri import URI
from tasks.planning import file_kinds, new_images, user_images


def write(folder: Path, paths: list[str]) -> URI:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(path.encode())
    return URI(str(folder))


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (["train-00000-of-00002.parquet"], "1 of 2 shards are missing: train-00001-of-00002.parquet; add them"),
        (["train-1-of-3-ab12.parquet", "train-3-of-3-cd34.parquet"], "1 of 3 shards are missing: train-2-of-3-ab12"),
        (["train/part_00_of_99.parquet"], "98 of 99 shards are missing: train/part_01_of_99.parquet, .*_05_of_99.*, "),
        (
            ["train/en/a-00000-of-00001.parquet", "train/de/a-0-of-2.parquet"],
            "1 of 2 shards are missing: train/de/a-1-of-2.parquet;",
        ),
        (["train-00000-of-9999999999.parquet"], "9,999,999,998 of 9,999,999,999 shards are missing: "),
    ],
)
def test_a_missing_shard_is_refused_by_name_before_training_and_prediction(
    tmp_path: Path, paths: list[str], says: str
) -> None:
    uri = write(tmp_path, [*paths, "test-00000-of-00001.parquet"])
    with pytest.raises(ValueError, match=f"^--data: {says}"):
        user_images.find(uri)
    with pytest.raises(ValueError, match=f"^--dataset: {says}"):
        new_images.listed(uri, classes=["a", "b"])


def test_complete_sets_of_shards_unused_splits_single_files_and_images_are_accepted(tmp_path: Path) -> None:
    train = [f"train-0000{number}-of-00002.parquet" for number in (0, 1)]
    test = [f"data/test_{number}_of_2.parquet" for number in (1, 2)]
    uri = write(tmp_path / "parquet", [*train, *test, "validation-00000-of-00009.parquet"])
    assert len(user_images.find(uri).files) == 4
    assert len(new_images.listed(uri.child(train[0]), classes=["a", "b"]).files) == 1
    images = write(tmp_path / "images", [f"train/{name}/1-of-7.png" for name in "ab"] + ["test/a/page-2-of-7.png"])
    assert len(user_images.find(images).files) == 3


def test_every_ending_of_a_format_that_is_read_is_an_image(tmp_path: Path) -> None:
    names = [f"photo{ending}" for ending in file_kinds.IMAGES]
    assert {"photo.jfif", "photo.jpe", "photo.jif", "photo.avif"} < set(names)
    paths = [f"{split}/{name}/{file}" for split in ("train", "test") for name in "ab" for file in names]
    found = user_images.find(write(tmp_path, paths))
    assert (len(found.files), found.left_out) == (len(paths), ())


def test_images_of_a_format_that_is_not_read_are_told_with_their_share(tmp_path: Path) -> None:
    paths = [f"{split}/{name}/{n}.png" for split in ("train", "test") for name in "ab" for n in range(5)]
    uri = write(tmp_path, [*paths, *(f"train/a/{n}.HEIC" for n in range(19)), "train/b/x.cr2", "notes.txt"])
    says = (
        "WARNING: 20 of 40 images (50%) are left out, because .cr2, .heic cannot be read; convert them to JPEG or PNG"
    )
    assert user_images.find(uri).notes[0] == says
    assert new_images.listed(uri, classes=["a", "b"]).notes == (says,)
    with pytest.raises(ValueError, match="neither images nor Parquet .*; 1 file is left out .images in a format that"):
        user_images.find(write(tmp_path / "only", ["a/x.heic"]))
