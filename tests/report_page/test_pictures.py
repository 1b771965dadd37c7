"""Pictures of a report: training images of each class, and rows that were left out, as the datasets hold them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import tables
from storage.kinds import DatasetURI
from storage.uri import Root
from tasks.learning import images
from tasks.report_page import pictures
from tests import committed, image_folder
from tests.comparing import runs
from tests.finished import Finished


def test_training_images_of_each_class_and_rows_left_out_are_read_with_reasons(finished: Finished) -> None:
    of_classes = finished.data.class_samples
    assert {name: len(its) for name, its in of_classes.items()} == dict.fromkeys(image_folder.CLASSES, 6)
    left_out = {row["place"]: row for row in finished.data.left_out}
    assert {place: row["reason"] for place, row in left_out.items()} == {
        "train/rote Äpfel/leer.png": "empty file",
        "train/pears/cut off.jpg": "truncated",
        "test/pears/no image.webp": "not an image in a supported format (PNG, JPEG, BMP, GIF, WEBP, AVIF, TIFF, PPM)",
        "test/pears/photo 7.png": "copy of another test row of its class",
    }
    (copy,) = [row["image"] for row in left_out.values() if row["image"] is not None]
    assert {image.shape for image in (copy, *(image for its in of_classes.values() for image in its))} == {(24, 24, 3)}


def test_rows_of_parquet_without_a_label_are_shown(root: Root, tmp_path: Path) -> None:
    for split, count in (("train", 30), ("test", 10)):
        content = [image_folder.encoded(number, number % 3) for number in range(count)]
        labels = [None if number == 4 else "abc"[number % 3] for number in range(count)]
        pq.write_table(pa.table({"image": content, "label": labels}), tmp_path / f"{split}.parquet")
    left_out = pictures.of_data(runs.prepare(root, runs.ingest(root, tmp_path, store="files")), None)["left_out"]
    assert [(row["place"], row["class"], row["image"].shape) for row in left_out] == [
        ("test.parquet id 4", None, (8, 8, 3)),
        ("train.parquet id 4", None, (8, 8, 3)),
    ]


@pytest.mark.parametrize(("num_classes", "of_each", "num"), [(3, 6, 18), (40, 2, 80), (400, 1, 96)])
def test_number_of_training_images_is_bounded_and_the_images_are_of_their_classes(
    root: Root, num_classes: int, of_each: int, num: int
) -> None:
    classes = tuple(map(str, range(num_classes)))
    labels = np.random.default_rng(0).permutation(np.arange(10 * num_classes) % num_classes)
    pixels = np.broadcast_to((labels % 256).astype(np.uint8)[:, None, None, None], (len(labels), 2, 2, 1))
    table = images.to_table(np.arange(len(labels)), pixels, labels, classes=classes)
    raw, uri = (DatasetURI(root.child(f"datasets/{kind}/x-0123456789ab")) for kind in ("raw", "prepared"))
    committed.commit(raw, "raw")
    parts = np.array_split(np.arange(len(labels)), 4)
    listed = [tables.write_part(uri, table.take(rows), split="train", index=n) for n, rows in enumerate(parts)]
    statistics: dict[str, Any] = {"class_counts": {"train": dict.fromkeys(classes, 10)}}
    schema = tables.describe(table.schema)
    committed.commit(uri, "prepared", listed, parents={"raw": raw}, schema=schema, **statistics)
    shown = pictures.of_data(uri, None)["class_samples"]
    assert {len(its) for its in shown.values()} == {of_each} and sum(map(len, shown.values())) == num
    assert all((image == int(name) % 256).all() for name, its in shown.items() for image in its)
    assert {classes[0], classes[-1]} <= shown.keys()
