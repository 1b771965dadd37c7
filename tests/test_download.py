"""From a data set's files to a raw dataset: rows stay as they came, what is no data set of images is refused."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import manifest, tables
from storage.manifest import Manifest
from storage.uri import URI, DatasetURI
from tasks.download import ingest, write_split
from tasks.learning import datasets
from tasks.learning.datasets import DataSet, Split

IMAGES = np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1)
LABELS = np.array([0, 1, 0, 1, 0, 1])


def ingested(folder: Path, images: np.ndarray, labels: np.ndarray) -> Manifest:
    """What becomes of a data set of cats and dogs with these rows."""
    data_set = DataSet(
        name="pets",
        files=(),
        mirrors=(),
        classes=("cat", "dog"),
        image_shape=(2, 2, 1),
        read=lambda _: iter([Split("train", images, labels)]),
    )
    return ingest(data_set, raw(folder), scratch=URI(f"{folder}/scratch"), log=lambda *_: None)


def raw(folder: Path) -> DatasetURI:
    return DatasetURI(f"{folder}/pets-0123456789ab")


def test_label_out_of_range_stays_in_the_raw_dataset_and_is_of_no_class(tmp_path: Path) -> None:
    labels = np.array([0, 1, 200, -1, 0, 1])
    made = ingested(tmp_path, IMAGES, labels)
    assert made.statistics["class_counts"] == {"train": {"cat": 2, "dog": 2}}
    assert tables.read_split(raw(tmp_path), "train")["label"].to_pylist() == labels.tolist()


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES[:0], LABELS[:0], "pets train: there are no images in it"),
        (IMAGES.astype(np.float32), LABELS, r"images must be uint8 \(2, 2, 1\), got float32 \(2, 2, 1\)"),
        (IMAGES[:, :1], LABELS, r"images must be uint8 \(2, 2, 1\), got uint8 \(1, 2, 1\)"),
        (IMAGES[..., 0], LABELS, r"images must be uint8 \(2, 2, 1\), got uint8 \(2, 2\)"),
        (IMAGES, LABELS[:5], r"labels must be int64 \(6,\), got int64 \(5,\)"),
        (IMAGES, LABELS * 0.5, r"labels must be int64 \(6,\), got float64 \(6,\)"),
        (IMAGES, LABELS[:, np.newaxis], r"labels must be int64 \(6,\), got int64 \(6, 1\)"),
    ],
)
def test_wrong_number_shape_or_dtype_is_refused_with_expected_and_found(
    tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ingested(tmp_path, images, labels)
    assert not Path(raw(tmp_path)).exists()


def test_parts_are_written_by_the_thread_that_a_deadline_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file, threads = manifest.write_file, []

    def noted(*arguments: Any, **keywords: Any) -> manifest.File:
        threads.append(threading.current_thread())
        return write_file(*arguments, **keywords)

    monkeypatch.setattr(manifest, "write_file", noted)
    split = Split(name="train", images=np.zeros((9, 28, 28, 1), np.uint8), labels=np.arange(9))
    listed = write_split(datasets.load("mnist"), DatasetURI(f"{tmp_path}/raw-0123456789ab"), split)
    assert [file.rows for file in listed] == [2, 2, 2, 3]
    assert threads == [threading.main_thread()] * 4
