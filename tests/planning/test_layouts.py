"""Layouts that people's data have: each image gets its class and split, in training and in prediction, or a refusal."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import files, manifest, tables
from storage.uri import URI, Root
from tasks.jobs.ingest import class_names
from tasks.learning import recipes
from tasks.planning import data_summary, make_plan, new_images, system_files, user_images
from tasks.planning.plan import Plan
from tests.image_folder import encoded
from tests.ingested import ingested
from tests.s3 import Server

CLASSES = ("cat", "dog", "owl")
Meant = dict[str, tuple[str, str]]
"""Split and class of each image, by path."""
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
    "usual": images("train/{}", "test/{}"),
    "words": images("my_train/{}", "Test Set/{}"),
    "camel case": images("TrainingImages/{}", "TestImages/{}"),
    "years": images("train2017/{}", "val2017/{}"),
    "doubled": images("seg_train/seg_train/{}", "seg_test/seg_test/{}") | {"seg_pred/seg_pred/1.png": EXTRA},
    "wrapped": images("data/photos/train/{}", "data/photos/test/{}") | {"cover.png": EXTRA},
    "copied": images("xray/train/{}", "xray/test/{}") | {"xray/xray/train/cat/9.png": EXTRA},
    "a folder between": images("train/images/{}", "test/images/{}") | {"train/banner.png": EXTRA},
    "partitions": images("split=train/{}", "split=test/{}"),
    "more splits": images("train/{}", "test/{}") | {"extra_train/cat/1.png": EXTRA, "val/cat/2.png": EXTRA},
    "deeper": images("train/{}/images", "test/{}/day 1") | {"train/cat/dog/9.png": ("train", "cat")},
    "one class in test": images("train/{}", "test/{}/old", ["cat"])
    | images("train/{}", "test/{}/new", ["cat"])
    | {path: its for path, its in images("train/{}", "").items() if its[0] == "train"},
    "classes like splits": images("train/{}", "test/{}", ["bus", "train", "test"]),
    "system files": images("train/{}", "test/{}")
    | {"train/@eaDir/1.png": EXTRA, "train/cat/@eaDir/1.png/SYNOPHOTO_THUMB_M.jpg": EXTRA, "#recycle/dog/2.png": EXTRA},
}
BY_CONTENT: dict[str, tuple[str, Meant]] = {
    "usual": ("{}", {"cover.png": EXTRA}),
    "wrapped": ("photos/photos/{}", {"cover.png": EXTRA}),
    "deeper": ("{}/images", {"cat/day 1/1.png": ("train", "cat"), "cat/dog/2.png": ("train", "cat")}),
    "a class that contains a split's name": ("bullet_train {}", {}),
    "system files": ("{}", {"#recycle/cat/1.png": EXTRA, "__MACOSX/cat/2.png": EXTRA, "$RECYCLE.BIN/3.png": EXTRA}),
}
"""Layouts without splits: the folders of the images, and other images."""


def write(folder: URI, meant: Meant) -> None:
    """Each image is another one."""
    for number, path in enumerate(meant):
        files.put(folder.child(path), encoded(number, number % 3))


def planned(root: Root, folder: URI, *settings: str) -> Plan:
    recipe = recipes.override(recipes.load("images-resnet18"), ["image_size=16", *settings])
    return make_plan.make_plan(storage=root.child("results"), recipe=recipe, data=folder, workers=0)


def rows(raw: URI) -> Meant:
    """Split and class of each file of one row, as the raw dataset has them."""
    committed = manifest.load(raw)
    classes = list(committed.statistics["class_counts"]["train"])
    part = next(file for file in committed.files if file.path.startswith("sources"))
    labels = {split: tables.read_split(raw, split)["label"].to_pylist() for split in ("train", "test")}
    return {
        source["path"]: (source["split"], classes[labels[source["split"]][source["first_id"]]])
        for source in tables.read_part(raw, part).to_pylist()
    }


def check(root: Root, meant: Meant, *settings: str) -> Plan:
    """Ingest the images; compare every label with what is meant, and with the one that prediction gives."""
    folder = root.child("photos")
    write(folder, meant)
    plan = planned(root, folder, *settings)
    used = {path: its for path, its in meant.items() if its is not EXTRA}
    found = rows(ingested(plan))
    classes = {path: name for path, (_, name) in used.items()}
    assert {path: name for path, (_, name) in found.items()} == classes
    assert plan.user_images is not None
    if plan.test_fraction is None:
        assert found == used
    classes_line = data_summary.of_user_images(plan.user_images).classes
    assert next(data_summary.of_raw(manifest.load(plan.raw))) == classes_line
    numbers = {
        name: [list(found.values()).count((split, name)) for split in ("train", "test")] for name in classes.values()
    }
    shown = ", ".join(f"{name} {train} + {test}" for name, (train, test) in sorted(numbers.items()))
    assert classes_line == f"{len(numbers)} classes, rows in train + test: {shown}"
    assert sum(files.count for files in plan.user_images.left_out) == len(meant) - len(used)
    new = new_images.listed(folder, classes=plan.user_images.classes)
    predicted = {file.path: file.label for file in new.files}
    assert {
        path: plan.user_images.classes[predicted[path] or 0] for path in used if predicted[path] is not None
    } == classes
    return plan


@pytest.fixture
def local(tmp_path: Path) -> Root:
    return Root(str(tmp_path))


@pytest.mark.parametrize("layout", SPLIT)
def test_images_below_splits_have_their_labels_in_training_and_in_prediction(local: Root, layout: str) -> None:
    check(local, SPLIT[layout])


@pytest.mark.parametrize("layout", BY_CONTENT)
def test_images_without_splits_have_their_labels_in_training_and_in_prediction(local: Root, layout: str) -> None:
    folder, more = BY_CONTENT[layout]
    names = {name: folder.split("/")[0].format(name) if folder.startswith("bullet") else name for name in CLASSES}
    usual = {path: (split, names[name]) for path, (split, name) in images(folder, folder).items()}
    check(local, usual | more, "test_fraction=0.4")


@pytest.mark.parametrize("layout", ["doubled"])
def test_layouts_are_read_on_s3_as_on_a_disk(root: Root, layout: str) -> None:
    check(root, SPLIT[layout])


def parquet(images: Sequence[bytes], **columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"image": images} | columns), sink)
    return sink.getvalue()


PARQUET: dict[str, tuple[str, dict[str, Any], str]] = {
    "folders of labels": ("{split}/label={name}/part-0.parquet", {"camera": ["front", "rear"]}, "folder label="),
    "folders of Spark": ("photos/{split}.parquet/class={name}/part-0.c000.snappy.parquet", {}, "folder class="),
    "folders of splits": ("split={split}/label={name}/part-0.parquet", {}, "folder label="),
    "words": ("mnist_{split}-{name}.parquet", {"label": "{name}", "camera": ["front", "rear"]}, "column label"),
    "Ray": ("{split}.parquet/0_{name}_000000.parquet", {"target": "{name}"}, "column target"),
    "two columns": (
        "{split}/{name}.parquet",
        {"class": ["front", "rear"], "label": "{name}"},
        "column label (class not used)",
    ),
    "other partitions": ("{split}/year=2026/{name}.parquet", {"labels": "{name}"}, "column labels"),
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
def test_parquet_has_the_labels_of_its_folders_or_of_its_column(local: Root, layout: str) -> None:
    path, columns, source = PARQUET[layout]
    write_parquet(local.child("photos"), path, columns)
    plan = planned(local, local.child("photos"))
    raw = ingested(plan)
    for split in ("train", "test"):
        assert tables.read_split(raw, split)["label"].to_pylist() == [0, 0, 1, 1, 2, 2]
    counts = manifest.load(raw).statistics["class_counts"]
    assert counts == {split: dict.fromkeys(CLASSES, 2) for split in ("train", "test")}
    assert plan.user_images and list(data_summary.of_raw(manifest.load(raw))) == [
        "3 classes, rows in train + test: cat 2 + 2, dog 2 + 2, owl 2 + 2",
        f"labels: {source}",
    ]
    before = data_summary.of_user_images(plan.user_images)
    assert (before.classes, before.labels) == (
        "3 classes, rows in train + test: cat 2 + 2, dog 2 + 2, owl 2 + 2",
        source,
    )


def test_check_on_s3_names_the_column_of_labels_and_says_that_the_run_counts(root: Root) -> None:
    if root.is_s3:
        write_parquet(root.child("photos"), *PARQUET["words"][:2])
        data = planned(root, root.child("photos")).user_images
        assert data and data_summary.of_user_images(data) == data_summary.Summary(
            "counted by the run, which reads the labels of 6 files", "column label, as in mnist_train-cat.parquet"
        )


REFUSED = {
    "test and train below classes": (["cat/train/1.png", "dog/test/2.png"], "cat/train: train and test must be above"),
    "words below classes": (
        ["cat/my_train/1.png", "cat/my_test/2.png", "dog/my_train/3.png"],
        "cat/my_test: train and test must be above the class folders",
    ),
    "splits without classes": (
        ["seg_train/1.png", "seg_test/2.png"],
        "no class folders with images in seg_train/, read as split train; .* rename its folder",
    ),
    "classes that contain the names of both splits": (
        ["training shoes/1.png", "test_tubes/2.png", "boots/3.png"],
        "in training shoes/, read as split train; .* rename its folder",
    ),
    "one split": (
        ["my_train/cat/1.png", "other/dog/2.png"],
        "no split test; my_train was read as split train; .* the images of my_train/, name that folder; .* put all",
    ),
    "test without labels": (
        ["train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "val/dog/4.png", "test/5.png"],
        "in test/, read as split test; if its images have no labels, move test/ elsewhere",
    ),
    "class called train": (
        ["bus/1.png", "car/2.png", "train/3.png"],
        "train was read as split train; .* rename its folder, or put all class fold",
    ),
    "class called valid": (
        ["valid/1.png", "invalid/2.png"],
        "no split train; valid was read as split valid; .* put all cl",
    ),
    "two of a split": (
        ["a_train/cat/1.png", "b_train/cat/2.png", "test/cat/3.png"],
        "a_train, b_train are all named like split train; keep one, or rename it to train",
    ),
    "copy among classes": (
        ["cat/1.png", "dog/2.png", "pets/cat/1.png", "pets/dog/2.png"],
        r"class folder pets/ has folders named like the classes beside it \(cat, dog\)",
    ),
    "wrapped in a class": (
        ["dog/cat/1.png", "dog/dog/2.png"],
        "dog, above class folder cat, is named like a class; rename it",
    ),
    "empty": (["cat/1.png", "dog/2.png", "owl/"], "class folder owl/ is empty, or a link"),
    "empty in splits": (
        ["train/cat/1.png", "train/dog/2.png", "test/cat/3.png", "train/owl/", "test/owl/"],
        "class folder train/owl/ is empty, or a link",
    ),
    "other types": (
        ["cat/1.png", "dog/2.png", "owl/3.heic", "owl/new/4.heic", "owl/notes.txt"],
        r"class folder owl/ has no images that can be read, only 2 \.heic, 1 \.txt; add images of the class, or move",
    ),
    "empty beside one": (["cat/old/1.png", "cat/new/2.png", "dog/"], "class folder dog/ is empty"),
    "parquet of two splits": (["train/test-0.parquet"], r"train/test-0.parquet names several splits \(train, test\)"),
    "parquet of two sets": (
        ["a_train.parquet", "b_train.parquet", "test.parquet"],
        "a train, b train are all named like split train",
    ),
}


@pytest.mark.parametrize("layout", REFUSED)
def test_what_can_be_read_in_several_ways_is_refused_in_one_line_with_the_next_step(
    tmp_path: Path, layout: str
) -> None:
    paths, says = REFUSED[layout]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).mkdir() if path.endswith("/") else (tmp_path / path).write_bytes(b"1")
    with pytest.raises(ValueError, match=f"^--data: {tmp_path}: .*{says}") as caught:
        user_images.find(URI(str(tmp_path)))
    assert "\n" not in str(caught.value)


def test_link_in_place_of_a_class_folder_is_refused(local: Root) -> None:
    write(local, {"cat/1.png": EXTRA, "dog/2.png": EXTRA})
    Path(local, "owl").symlink_to(Path(local, "cat"))
    with pytest.raises(ValueError, match="class folder owl/ is empty, or a link, which is not followed; add images"):
        user_images.find(local)


def test_class_folder_of_a_marker_without_images_is_refused_on_s3(s3: Server) -> None:
    client = s3.client()
    for key in ("cat/1.png", "dog/2.png", "", "owl/"):
        client.put_object(Bucket=s3.bucket, Key=f"marked/{key}", Body=b"1" if key.endswith("png") else b"")
    with pytest.raises(ValueError, match="class folder owl/ is empty"):
        user_images.find(URI(f"s3://{s3.bucket}/marked"))


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        (["Cat", "cat", "dog"], "classes 'Cat', 'cat' differ only in case or blanks; are they one class?"),
        (["dog", "dog ", "owl"], "classes 'dog', 'dog ' differ only in case or blanks; are they one class?"),
    ],
)
def test_classes_that_differ_only_in_case_or_blanks_are_warned_of(local: Root, classes: list[str], says: str) -> None:
    write(local, images("train/{}", "test/{}", classes))
    assert user_images.find(local).notes == (says,)
    surveyed = [
        {"split": "train", "path": "train.parquet", "rows": 9, "unlabelled": 0, "names": None, "labels": classes}
    ]
    assert list(class_names.remarks(surveyed, classes)) == [says]


@pytest.mark.parametrize("more", ["", "north/day/1.png", "south/fox/1.png"])
def test_folders_that_may_be_the_classes_are_warned_of(local: Root, more: str) -> None:
    write(local, {more: EXTRA} if more else {})
    for place in ("north", "south"):
        write(local, {f"{place}/{name}/{number}.png": EXTRA for name in CLASSES for number in range(8)})
    says = "classes north, south all have folders cat, dog, owl; if those are the classes, make them the upper folders"
    assert user_images.find(local).notes[0] == says


LEFT_OUT = [
    *(
        "@eaDir/a.png",
        "cat/@eaDir/a.png/SYNOPHOTO_THUMB_M.jpg",
        "#recycle/a.png",
        "cat/.@__thumb/a.png",
        "@Recycle/a.png",
    ),
    *("$RECYCLE.BIN/a.png", "System Volume Information/a.png", "cat/Thumbs.db", "__MACOSX/cat/a.png", ".DS_Store"),
    *("_SUCCESS", "_temporary/0/a.parquet", "_delta_log/1.checkpoint.parquet", "train/_metadata", "cat_$folder$"),
    *("cat/.ipynb_checkpoints/a-checkpoint.png", "lost+found/a.png", "cat/lost+found/a.png", "~snapshot/cat/a.png"),
]


def test_files_of_the_system_are_no_data_at_any_level() -> None:
    assert all(map(system_files.reason, LEFT_OUT))
    assert not any(
        map(system_files.reason, ["@cat/a.png", "#dog/a.png", "_owl/a.png", "system/a.png", "recycle/a.png"])
    )


def test_parquet_with_labels_in_two_places_or_in_none_is_refused(local: Root) -> None:
    for path, columns, says in (
        (
            "{split}/label={name}/0.parquet",
            {"label": "{name}"},
            "labels are in column label and in folder label=; keep",
        ),
        (
            "{split}/breed={name}/0.parquet",
            {"camera": ["front", "rear"]},
            r"camera \(string\) and the folders breed=: rename",
        ),
        (
            "{split}/{name}.parquet",
            {"camera": ["front", "rear"]},
            r"columns are image \(binary\), camera \(string\): rename",
        ),
    ):
        files.remove(local)
        write_parquet(local, path, columns)
        data = user_images.find(local)
        with pytest.raises(ValueError, match=f"^--data: .*parquet: .*{says}"):
            data_summary.of_user_images(data)


def test_parquet_beside_the_splits_is_left_out_for_the_true_reason(local: Root) -> None:
    for name in ("train", "test", "extra_train", "other"):
        files.put(local.child(f"{name}.parquet"), b"1")
    data = user_images.find(local)
    assert {one.reason: one.first for one in data.left_out} == {
        "named like split train, for which train is used": ["extra_train.parquet"],
        "no folder or file name contains train or test": ["other.parquet"],
    }


def test_of_many_classes_the_smallest_the_largest_and_the_first_are_named() -> None:
    rows = {f"class {number:03}": 100 + number % 50 for number in range(120)}
    assert data_summary.of_counts({"test": dict.fromkeys(rows, 2), "train": rows}) == (
        "120 classes, rows in train + test: smallest class 000 100 + 2, largest class 049 149 + 2; first class 000 "
        "100 + 2, class 001 101 + 2, class 002 102 + 2, ..."
    )


def test_a_run_says_classes_and_labels_also_when_it_reuses_the_raw_dataset(
    local: Root, caplog: pytest.LogCaptureFixture
) -> None:
    write(local.child("photos"), SPLIT["usual"])
    caplog.set_level("INFO")
    for end in ("ingest done in", "ingest reused"):
        caplog.clear()
        ingested(planned(local, local.child("photos")))
        messages = [record.getMessage() for record in caplog.records]
        assert messages[-3:-1] == [
            "3 classes, rows in train + test: cat 3 + 2, dog 3 + 2, owl 3 + 2",
            "labels: the folders below train/ and test/",
        ]
        assert messages[-1].startswith(end)
