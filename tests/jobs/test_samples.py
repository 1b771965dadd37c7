"""Pictures of a dataset for the report: training images of each class, and rows that were left out."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from storage import manifest
from storage.uri import DatasetURI
from tasks.jobs.preprocess import samples
from tasks.learning import recipes
from tasks.planning import make_plan
from tasks.preprocess import preprocess
from tasks.runners.runner import InProcessRunner
from tests import image_folder
from tests.ingested import ingested


def size_of(picture: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(picture)) as image:
        assert image.format == "PNG"
        return image.size


def prepared(root: Path, folder: Path) -> DatasetURI:
    recipe = recipes.override(recipes.load("images-resnet18"), ["image_size=32", "max_quarantined=0.5"])
    plan = make_plan.make_plan(storage=str(root), recipe=recipe, data=str(folder), workers=0)
    return preprocess.fn(ingested(plan), plan.prepared, plan.preprocess, InProcessRunner())


def test_training_images_of_each_class_and_rows_left_out_are_stored_with_reasons(tmp_path: Path) -> None:
    folder = image_folder.write_folder(tmp_path / "photos")
    test = folder / "test" / "pears"
    (test / "again.png").write_bytes((test / "photo 0.png").read_bytes())
    stored = []
    for name in ("a", "b"):
        uri = prepared(tmp_path / name, folder)
        (file,) = (file for file in manifest.load(uri).files if file.path.startswith("samples-"))
        stored.append((file.sha256, samples.read(uri, manifest.load(uri))))
    assert stored[0] == stored[1]
    rows = stored[0][1]
    of_classes = [row["class"] for row in rows if row["kind"] == samples.OF_CLASS]
    assert of_classes == [name for name in image_folder.CLASSES for _ in range(6)]
    left_out = {row["place"]: row for row in rows if row["kind"] != samples.OF_CLASS}
    assert {place: row["reason"] for place, row in left_out.items()} == {
        "train/rote Äpfel/leer.png": "empty file",
        "train/pears/cut off.jpg": "truncated",
        "test/pears/no image.webp": "not an image in a supported format (PNG, JPEG, BMP, GIF, WEBP, AVIF, TIFF, PPM)",
        "test/pears/photo 0.png": "copy of another test row of its class",
    }
    assert [place for place, row in left_out.items() if row["image"]] == ["test/pears/photo 0.png"]
    assert {size_of(row["image"]) for row in rows if row["image"]} == {(32, 32)}


def test_rows_of_parquet_without_a_label_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for split, count in (("train", 30), ("test", 10)):
        content = [image_folder.encoded(number, number % 3) for number in range(count)]
        labels = [None if number == 4 else "abc"[number % 3] for number in range(count)]
        pq.write_table(pa.table({"image": content, "label": labels}), folder / f"{split}.parquet")
    uri = prepared(tmp_path / "root", folder)
    left_out = [row for row in samples.read(uri, manifest.load(uri)) if row["kind"] != samples.OF_CLASS]
    assert [(row["place"], row["class"], bool(row["image"])) for row in left_out] == [
        ("test.parquet id 4", None, True),
        ("train.parquet id 4", None, True),
    ]


@pytest.mark.parametrize(("num_classes", "of_each", "num"), [(3, 6, 18), (40, 2, 80), (400, 1, 96)])
def test_number_of_training_images_is_bounded(num_classes: int, of_each: int, num: int) -> None:
    rows = np.arange(20 * num_classes)
    splits = np.where(rows < 15 * num_classes, "train", "test")
    placed = pd.DataFrame({"source": "train", "row": rows, "label": rows % num_classes, "split": splits})
    chosen = samples.of_classes(placed, num_classes)
    counts = chosen["label"].value_counts()
    assert set(counts) == {of_each} and len(chosen) == num
    assert {counts.index.min(), counts.index.max()} == {0, num_classes - 1}
