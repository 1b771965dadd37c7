"""Layouts that people's data have: each image gets its class and split, in training and in prediction, or a refusal."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import files, manifest, tables
from storage.kinds import DatasetURI
from storage.uri import URI, Root
from tasks.images import class_names, layout, row_tables, user_images
from tasks.learning import recipes
from tasks.learning.images import classes_of
from tasks.planning import data_summary, image_check, make_plan, model_check
from tasks.planning.plan import Plan
from tests.image_folder import encoded
from tests.ingested import ingested
from tests.s3 import Server

CLASSES = ("cat", "dog", "owl")
NUMBERS = [str(number) for number in range(12)]
Meant = dict[str, tuple[str, str]]
"""Split and class of each image, by path."""
_DOCS = Path(__file__).parents[2] / "docs"
EXTRA = ("", "cat")
"""Of an image that is left out."""


def images(train: str, test: str, classes: Sequence[str] = CLASSES) -> Meant:
    """Three training images and two test images of each class; `{}` stands for the class."""
    splits = (("train", train, 3), ("test", test, 2))
    return {
        f"{folder.format(name)}/{split} {number}.png": (split, name)
        for split, folder, count in splits
        for name in classes
        for number in range(count)
    }


SPLIT: dict[str, Meant] = {
    "doubled": images("seg_train/seg_train/{}", "seg_test/seg_test/{}") | {"seg_pred/seg_pred/1.png": EXTRA},
    "a folder between": images("train/images/{}", "Test Set/images/{}") | {"train/banner.png": EXTRA},
    "deeper": images("train/{}/images", "test/{}/day 1") | {"train/cat/dog/9.png": ("train", "cat")},
    "one class in test": images("train/{}", "test/{}/old", ["cat"])
    | images("train/{}", "test/{}/new", ["cat"])
    | {path: its for path, its in images("train/{}", "").items() if its[0] == "train"},
    "validation beside test": images("train/{}", "test/{}", NUMBERS) | {"val/10/2.png": EXTRA},
    "by content": images("photos/photos/{}", "photos/photos/{}/more") | {"cover.png": EXTRA},
}


def planned(root: Root, folder: URI, *settings: str) -> Plan:
    recipe = recipes.override(recipes.load("images-resnet18"), ["image_size=16", *settings])
    return make_plan.make_plan(storage=root.child("results"), recipe=recipe, data=folder, workers=0)


def rows(raw: DatasetURI) -> Meant:
    """Split and class of each file of one row, as the raw dataset has them."""
    committed = manifest.load(raw)
    classes, sources = classes_of(committed.columns["metadata"]), row_tables.table(raw, committed)
    assert sources is not None
    labels = {split: tables.read_split(raw, split)["label"].to_pylist() for split in ("train", "test")}
    rows = zip(sources["path"], sources["split"], sources["first_id"], strict=True)
    return {path: (split, classes[labels[split][row]]) for path, split, row in rows}


@pytest.fixture
def local(tmp_path: Path) -> Root:
    return Root(str(tmp_path))


@pytest.mark.parametrize("layout", SPLIT)
def test_images_have_their_labels_in_training_and_in_prediction(local: Root, layout: str) -> None:
    folder, meant = local.child("photos"), SPLIT[layout]
    for number, path in enumerate(meant):
        files.put(folder.child(path), encoded(number, number % 3))
    plan = planned(local, folder, *(["test_fraction=0.4"] if layout == "by content" else []))
    used = {path: its for path, its in meant.items() if its is not EXTRA}
    classes = {path: name for path, (_, name) in used.items()}
    raw = rows(ingested(plan))
    assert {path: name for path, (_, name) in raw.items()} == classes
    assert raw == used or layout == "by content"
    data = model_check.listing_of(plan)
    assert data is not None and list(data.classes) == class_names.in_order(set(classes.values()))
    assert sum(files.count for files in data.left_out) == len(meant) - len(used)
    predicted = {file.path: file.label for file in user_images.find_new(folder, classes=data.classes).files}
    assert {path: data.classes[label] for path in used if (label := predicted[path]) is not None} == classes


PUBLIC = [
    entry.strip().split("\n    ")
    for block in re.findall("```text\n(.*?)```", (_DOCS / "internals" / "layouts.md").read_text(), re.DOTALL)
    for entry in block.split("\n\n")
]
"""Name, paths and outcome of each layout that the docs show."""


@pytest.mark.parametrize(("paths", "outcome"), [entry[1:] for entry in PUBLIC], ids=[entry[0] for entry in PUBLIC])
def test_public_data_set_is_read_or_refused_as_the_docs_say(local: Root, paths: str, outcome: str) -> None:
    folder = local.child("photos")
    touch(folder, *(path for pattern in paths.split() for path in expanded(pattern)))
    try:
        data = user_images.find(folder, are_grouped=True)  # which files are test rows does not matter here
    except ValueError as error:
        assert re.match(re.escape(f"--data: {folder}: {outcome.removeprefix('refused: ')}") + "[;:,]", str(error))
        assert "\n" not in str(error) and ("parquet" in paths or str(error).endswith(layout.EXPECTED))
        return
    if data.kind == "parquet":
        assert (
            outcome == f"read: Parquet; test rows in {', '.join(row.path for row in data.files if row.split == 'test')}"
        )
        return
    assert outcome == f"read: {data.labels}{'; test rows by content' if data.test_fraction else ''}"
    predicted = {file.path: file.label for file in user_images.find_new(folder, classes=data.classes).files}
    assert {file.path: predicted[file.path] for file in data.files} == {file.path: file.label for file in data.files}


def expanded(pattern: str) -> list[str]:
    """Return the paths that a pattern such as `{train,test}/1.png` stands for."""
    before, has_choice, rest = pattern.partition("{")
    choices, _, after = rest.partition("}")
    return (
        [f"{before}{choice}{end}" for choice in choices.split(",") for end in expanded(after)]
        if has_choice
        else [before]
    )


def parquet(images: Sequence[bytes], **columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"image": images} | columns), sink)
    return sink.getvalue()


PARQUET: dict[str, tuple[str, dict[str, Any]]] = {
    "words": ("mnist_{split}-{name}.parquet", {"label": "{name}", "camera": ["front", "rear"]}),
    "Hugging Face": ("data/{split}-00000-of-00001-{name}.parquet", {"label": "{name}"}),
    "Ray": ("{split}.parquet/0_{name}_000000.parquet", {"label": "{name}"}),
}


def write_parquet(folder: URI, path: str, columns: Mapping[str, Any]) -> None:
    """Two images of each class in each split."""
    for number, (split, name) in enumerate((split, name) for split in ("train", "test") for name in CLASSES):
        values = {
            key: [value.format(name=name)] * 2 if isinstance(value, str) else value for key, value in columns.items()
        }
        content = parquet([encoded(2 * number + row, 0) for row in range(2)], **values)
        files.put(folder.child(path.format(split=split, name=name)), content)


@pytest.mark.parametrize("layout", PARQUET)
def test_parquet_has_the_labels_of_its_column(local: Root, layout: str) -> None:
    source = "column label"
    write_parquet(local.child("photos"), *PARQUET[layout])
    plan = planned(local, local.child("photos"))
    data = model_check.listing_of(plan)
    assert data and image_check.check_images(plan) == "12 of 12 images decoded"
    raw = ingested(plan)
    for split in ("train", "test"):
        assert tables.read_split(raw, split)["label"].to_pylist() == [0, 0, 1, 1, 2, 2]
    before = data_summary.of_user_images(data)
    assert before == ("3 classes, rows in train + test: cat 2 + 2, dog 2 + 2, owl 2 + 2", source)
    assert list(data_summary.of_raw(manifest.load(raw))) == [before[0], f"labels: {source}"]


def test_check_on_s3_names_the_column_of_labels_and_leaves_the_counting_to_the_run(s3: Server) -> None:
    root = Root(f"s3://{s3.bucket}/tables")
    write_parquet(root.child("photos"), *PARQUET["words"])
    data = model_check.listing_of(planned(root, root.child("photos")))
    assert data and data_summary.of_user_images(data) == (
        "counted by the run, which reads the labels of 6 files",
        "column label",
    )


WHOLE = ["train/cat/1.png", "train/dog/2.png", "test/cat/3.png"]
REFUSED = {
    "nothing": (["readme.txt"], "neither images nor Parquet"),
    "both kinds": (["train.parquet", "a.png"], "holds 1 Parquet file, such as train.parquet, and 1 image, such as a"),
    "class only in test": ([*WHOLE, "test/owl/4.png"], "class owl has test images but no training images"),
    "too few for a split by content": (["cat/1.png", "dog/2.png"], "selects no test rows from 2 images"),
    "wrapped in a class": (["dog/cat/1.png", "dog/dog/2.png"], "dog, above class folder cat, is named like a class"),
    "Hudi": (["train/0.parquet", "test.parquet", ".hoodie/hoodie.properties"], "hoodie.properties is of a Delta Lake,"),
    "Iceberg": (["train/0.parquet", "test.parquet", "metadata/v2.metadata.json"], "metadata.json is of a Delta Lake,"),
}


@pytest.mark.parametrize("layout", REFUSED)
def test_unusable_layout_is_refused_in_one_line_with_the_next_step(local: Root, layout: str) -> None:
    paths, message = REFUSED[layout]
    touch(local, *paths)
    with pytest.raises(ValueError, match=f"^--data: .*({message})") as caught:
        user_images.find(local)
    assert "\n" not in str(caught.value)


def test_more_classes_than_a_confusion_matrix_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 10,000 classes, got 10,001; use"):
        class_names.check_number(10_001)


def touch(folder: URI, *paths: str) -> None:
    """Write a file at each path."""
    for number, path in enumerate(paths):
        files.put(folder.child(path), str(number).encode())


def test_complete_shards_and_single_files_are_accepted(local: Root) -> None:
    shards = [f"train-0000{number}-of-00002.parquet" for number in (0, 1)]
    touch(local, *shards, *(f"data/test_{number}_of_2.parquet" for number in (1, 2)))
    assert len(user_images.find(local).files) == 4
    files.remove(local.child(shards[1]))
    assert len(user_images.find_new(local.child(shards[0]), classes=["a", "b"]).files) == 1
    with pytest.raises(ValueError, match=f"^--data: {local}: 1 of 2 shards are missing beside"):
        user_images.find_new(local, classes=["a", "b"])


LEFT_OUT = [
    *("@eaDir/a.png", "cat/@eaDir/a.png/SYNOPHOTO_THUMB_M.jpg", "#recycle/a.png", "cat/.@__thumb/a.png"),
    *("$RECYCLE.BIN/a.png", "System Volume Information/a.png", "cat/Thumbs.db", "__MACOSX/cat/a.png", ".DS_Store"),
    *("_SUCCESS", "_temporary/0/a.parquet", "train/_metadata", "cat_$folder$", "_started_1", "_common_metadata"),
    *("cat/.ipynb_checkpoints/a-checkpoint.png", "lost+found/a.png", "~snapshot/cat/a.png", "@Recycle/a.png"),
]
KEPT = ["@cat/a.png", "#dog/a.png", "_owl/a.png", "system/a.png", "recycle/a.png"]


def test_files_of_a_system_are_no_data_at_any_level(local: Root) -> None:
    touch(local, *LEFT_OUT, *KEPT)
    listed = user_images.find_new(local, classes=["a", "b"])
    assert sorted(file.path for file in listed.files) == sorted(KEPT)
    assert {files.reason: files.count for files in listed.left_out} == {
        "system files": 16,
        "hidden: the name begins with a dot": 3,
    }


def test_of_many_classes_the_first_are_named() -> None:
    rows = {f"class {number:03}": 100 + number for number in range(120)}
    line = data_summary.of_counts({"test": dict.fromkeys(rows, 2), "train": rows})
    assert line.startswith("120 classes, rows in train + test: class 000 100 + 2, class 001 101 + 2, class 002 102 + 2")
    assert line.endswith("class 009 109 + 2, ...")


def test_a_run_prints_classes_and_labels_also_when_it_reuses_the_raw_dataset(
    local: Root, caplog: pytest.LogCaptureFixture
) -> None:
    touch(local.child("photos"), *images("train/{}", "test/{}"))
    caplog.set_level("INFO")
    for end in ("ingest done in", "ingest reused"):
        ingested(planned(local, local.child("photos")))
        messages = [record.getMessage() for record in caplog.records]
        assert messages[-3].startswith(end)
        assert messages[-2:] == [
            "3 classes, rows in train + test: cat 3 + 2, dog 3 + 2, owl 3 + 2",
            "labels: the folders below train/ and test/",
        ]
