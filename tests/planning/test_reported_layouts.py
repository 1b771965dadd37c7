"""Layouts that others report to have been read wrongly without a word: understood, warned of, or refused."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage.uri import URI
from tasks.jobs.ingest import class_names
from tasks.planning import data_summary, parquet_names, user_images
from tests.image_folder import encoded

NUMBERS = [str(number) for number in range(12)]


def write(folder: Path, *paths: str, **tables: Sequence[str]) -> URI:
    """Write an image at each path, and tables `NAME.csv` of these lines; return the folder."""
    for number, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(encoded(number, number % 3))
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("".join(f"{line}\r\n" for line in lines))
    return URI(str(folder))


def test_classes_called_by_numbers_are_numbered_by_value(tmp_path: Path) -> None:
    photos = write(tmp_path, *(f"{split}/{name}/a.png" for split in ("train", "test") for name in NUMBERS))
    assert list(user_images.find(photos).classes) == NUMBERS
    text = {"rows": 12, "unlabelled": 0, "labels": sorted(NUMBERS), "names": None}
    surveyed = [text | {"path": f"{split}.parquet", "split": split} for split in ("train", "test")]
    assert list(class_names.of_files(surveyed)) == NUMBERS
    assert data_summary.of_counts({"": dict.fromkeys(sorted(NUMBERS), 3)}).endswith("first 0 3, 1 3, 2 3, ...")
    assert class_names.in_order({"10", "9", "cat"}) == ["10", "9", "cat"]


IMAGES = [f"part_{1 + number % 2}/ISIC {number}.png" for number in range(20)]


def test_parts_of_a_set_whose_labels_are_in_a_table_are_no_classes(tmp_path: Path) -> None:
    rows = [f"{Path(path).stem},{'nv' if number % 3 else 'mel'}" for number, path in enumerate(IMAGES)]
    photos = write(tmp_path, *IMAGES, metadata=["image_id,dx", *rows])
    with pytest.raises(ValueError, match="metadata.csv lists the images, but not by the folders part_1, part_2"):
        user_images.find(photos)


@pytest.mark.parametrize(
    "lines", [[f"p{n:03},{path.split('/')[0]},{Path(path).name}" for n, path in enumerate(IMAGES)], IMAGES, ["a,b"]]
)
def test_a_table_that_agrees_with_the_folders_or_is_about_something_else_is_left_out(
    tmp_path: Path, lines: Sequence[str]
) -> None:
    found = user_images.find(write(tmp_path, *IMAGES, list=["a,b,c", *lines]))
    assert found.classes == ("part_1", "part_2")
    assert [left_out.first for left_out in found.left_out] == [["list.csv"]]


@pytest.mark.parametrize("folder", ["images", "", "train"])
def test_missing_class_folders_beside_a_table_are_refused_with_what_to_do(tmp_path: Path, folder: str) -> None:
    paths = [f"{folder}/{number}.png".lstrip("/") for number in range(4)]
    photos = write(tmp_path, *paths, *(["test/9.png"] if folder == "train" else []), labels=["0.png,cat", "1.png,dog"])
    with pytest.raises(ValueError, match=r"labels.csv: labels are not read from tables; put the images of each class"):
        user_images.find(photos)


@pytest.mark.parametrize(
    "log",
    ["train/_delta_log/00.json", ".hoodie/hoodie.properties", "metadata/v2.metadata.json", "a/_delta_log/1.parquet"],
)
def test_tables_with_deleted_rows_in_their_parquet_files_are_refused(tmp_path: Path, log: str) -> None:
    for path in ("train/part-0.parquet", "test/part-0.parquet", log):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=f"{re.escape(log)} is of a Delta Lake, Hudi or Iceberg table"):
        user_images.find(URI(str(tmp_path)))


@pytest.mark.parametrize(
    ("folders", "warns"),
    [(("full/", "mini/"), True), (("", "mini/"), True), (("data/",), False), (("day=1/", "day=2/"), False)],
)
def test_sets_that_would_be_merged_are_warned_of(folders: Sequence[str], warns: bool) -> None:
    paths = [
        f"{folder}{split}" for folder in folders for split in ("train/0.parquet", "train/1.parquet", "test-0.parquet")
    ]
    used, _, notes = parquet_names.splits(paths)
    assert set(used) == set(paths)
    assert ["together; if they hold the same images" in note for note in notes] == [True] * warns
