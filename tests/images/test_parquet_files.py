"""A user's Parquet files become a raw dataset: classes are matched by name, and what cannot be read is refused."""

import errno
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import error_policy, files, manifest, tables
from storage.kinds import PREPARED, RAW, DatasetURI
from storage.uri import Root
from tasks.images import parquet_files
from tasks.jobs.ingest import job
from tasks.jobs.local_data import LocalData
from tasks.jobs.preprocess import job as preprocess
from tasks.jobs.spec import JobSpec
from tasks.learning import images
from tests.image_folder import encoded
from tests.jobs import raw as jobs

IMAGES = [encoded(number, number % 2) for number in range(4)]
LABELS = ["cat", "dog", "dog", "cat"]
NAMES = {"classes": '["cat", "dog"]'}
OTHERWISE = {"classes": '["dog", "cat"]'}
FEATURES = {"label": {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}}
HUGGING_FACE = {"huggingface": json.dumps({"info": {"features": FEATURES}})}


def parquet(metadata: dict[str, str] | None = None, **columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), sink)
    return sink.getvalue()


def labelled(labels: list[Any], metadata: dict[str, str] | None = None, first: int = 0) -> bytes:
    """A file with these labels, each of another image."""
    return parquet(metadata, image=[encoded(first + row, row % 2) for row in range(len(labels))], label=labels)


def ingested(folder: Path, contents: Mapping[str, bytes]) -> DatasetURI:
    """The raw dataset of Parquet files with these paths and contents."""
    root = Root(str(folder))
    for path, content in contents.items():
        files.put(root.child(f"pets/{path}"), content)
    spec = jobs.to_ingest(root, root.child("pets"))
    job.run(JobSpec(stage=spec), LocalData())
    return spec.target


def classes_of(raw: DatasetURI) -> tuple[str, ...]:
    return images.classes_of(manifest.load(raw).columns["metadata"])


def class_names_of(raw: DatasetURI, split: str) -> list[str | None]:
    """The class of each row, by name; `-1` for a number without a name."""
    names = {None: None, -1: "-1"} | dict(enumerate(classes_of(raw)))
    return [names[label] for label in tables.read_split(raw, split)["label"].to_pylist()]


SAME = {
    "bytes": parquet(image=IMAGES, label=LABELS),
    "structs": parquet(image=[{"bytes": image, "path": "x.png"} for image in IMAGES], label=LABELS),
    "large types": parquet(image=pa.array(IMAGES, pa.large_binary()), label=pa.array(LABELS, pa.large_string())),
    "named numbers": parquet(NAMES, id=[1, 2, 3, 4], image=IMAGES, label=pa.array([0, 1, 1, 0], pa.uint8())),
    "numbered otherwise": parquet(OTHERWISE, image=IMAGES, label=[1, 0, 0, 1]),
    "text beside names": parquet(OTHERWISE, image=IMAGES, label=LABELS),
    "Hugging Face": parquet(HUGGING_FACE, image=IMAGES, label=[0, 1, 1, 0]),
}
"""Files that say the same, each in its own way."""


@pytest.mark.parametrize("kind", SAME)
def test_each_form_of_images_and_labels_is_read_and_matched_by_name(tmp_path: Path, kind: str) -> None:
    raw = ingested(tmp_path, {"train-0.parquet": SAME[kind], "test-0.parquet": SAME["named numbers"]})
    assert class_names_of(raw, "train") == class_names_of(raw, "test") == LABELS
    order = ("dog", "cat") if kind == "numbered otherwise" else ("cat", "dog")
    assert classes_of(raw) == order, "the order is the order of train, without names that have no rows"
    note = "column label; names without rows are left out: [owl]" if kind == "Hugging Face" else "column label"
    assert manifest.load(raw).statistics_of(RAW).labels == note
    assert tables.read_split(raw, "train")["image"].equals(tables.read_split(raw, "test")["image"])


@pytest.mark.parametrize(
    ("contents", "classes", "train"),
    [
        (
            {"train-0": labelled([0, 1], NAMES), "train-1": labelled([0, 1], OTHERWISE, 9), "test": labelled(["dog"])},
            ("cat", "dog"),
            ["cat", "dog", "dog", "cat"],
        ),
        (
            {
                "train-0": labelled([0, 1, 2], HUGGING_FACE),
                "train-1": labelled([0, 1, 2], NAMES, 9),  # 2 has no name here, whatever other files call it
                "test": labelled([0, 1], NAMES),
            },
            ("cat", "dog", "owl"),
            ["cat", "dog", "owl", "cat", "dog", "-1"],
        ),
        (
            {"train-0": labelled(["10"]), "train-1": labelled(["2", "7", "2"], first=9), "test": labelled(["10"])},
            ("2", "7", "10"),
            ["10", "2", "7", "2"],
        ),
        (
            {"train": labelled(["e\u0301", "z", "\u00e9"]), "test": labelled(["z", "e\u0301"])},
            ("z", "\u00e9"),
            ["\u00e9", "z", "\u00e9"],
        ),
    ],
    ids=["numbers of each file", "number without a name", "order of numbers", "two encodings of an accent"],
)
def test_classes_of_all_files_are_one_list(
    tmp_path: Path, contents: dict[str, bytes], classes: tuple[str, ...], train: list[str]
) -> None:
    raw = ingested(tmp_path, {f"{name}.parquet": content for name, content in contents.items()})
    assert (classes_of(raw), class_names_of(raw, "train")) == (classes, train)


@pytest.mark.parametrize(
    ("labels", "metadata"), [([0, 1, -1, None], NAMES), (["cat", "dog", "", None], None)], ids=["names", "text"]
)
def test_rows_without_a_label_become_no_class_and_are_left_out_counted_and_named(
    tmp_path: Path, labels: list[Any], metadata: dict[str, str] | None
) -> None:
    usual = [*labels[:2] * 8]
    contents = {"train-0": usual, "train-1": [*labels, *usual], "test-0": [*usual, labels[2]]}
    raw = ingested(
        tmp_path,
        {f"{name}.parquet": labelled(its, metadata, 100 * at) for at, (name, its) in enumerate(contents.items())},
    )
    assert len(classes_of(raw)) == 2
    spec = jobs.to_prepare(Root(str(tmp_path)), raw, max_quarantined=0.2)
    preprocess.run(JobSpec(stage=spec), LocalData())
    statistics = manifest.load(spec.target).statistics_of(PREPARED)
    assert statistics.quarantined == {"label is missing": 3}
    assert statistics.quarantined_files == (
        "test-0.parquet (1 of 17 rows have no label)",
        "train-1.parquet (2 of 20 rows have no label)",
    )


def test_images_that_are_missing_or_broken_have_no_pixels_and_a_reason(tmp_path: Path) -> None:
    paths = [{"bytes": image, "path": "a.png"} for image in (IMAGES[0], None, b"broken", IMAGES[3])]
    train = parquet(image=pa.array(paths, pa.struct({"bytes": pa.binary(), "path": pa.string()})), label=LABELS)
    raw = ingested(tmp_path, {"train.parquet": train, "test.parquet": SAME["bytes"]})
    assert tables.read_split(raw, "train")["image"].is_null().to_pylist() == [False, True, True, False]
    missing, broken = manifest.load(raw).statistics_of(RAW).unreadable
    assert missing == "train.parquet row 1 (missing)"
    assert broken.startswith("train.parquet row 2 (not an image in a supported format")


def footer_flipped(content: bytes) -> bytes:
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    return content[:start] + bytes(byte ^ 255 for byte in content[start : start + 60]) + content[start + 60 :]


def page_changed() -> bytes:
    """A file with checksums of its pages, of which that of the images no longer fits."""
    sink = io.BytesIO()
    table = pa.table({"image": IMAGES, "label": LABELS})
    pq.write_table(table, sink, write_page_checksum=True, use_dictionary=False, compression="none")
    old = IMAGES[1][-40:]
    assert sink.getvalue().count(old) == 1
    return sink.getvalue().replace(old, old[:20] + bytes(20))


GOOD = SAME["bytes"]
REFUSED = {
    "no Parquet": (b"no parquet", "cannot be read: .*not a parquet file"),
    "footer": (footer_flipped(GOOD), "this Parquet file cannot be read: .*Couldn't deserialize thrift"),
    "encrypted": (GOOD[:-4] + b"PARE", "cannot be read: .*encrypted"),
    "changed page": (page_changed(), "cannot be read: .*CRC checksum verification failed"),
    "no images": (parquet(label=LABELS), r"the columns are label \(string\); expected image \(the bytes .* pa.table"),
    "no labels": (parquet(image=IMAGES), r"the columns are image \(binary\); expected"),
    "file names": (parquet(image=["a.png"] * 4, label=LABELS), r"are image \(string\), label \(string\); expected"),
    "no bytes": (parquet(image=[{"path": "a.png"}] * 4, label=LABELS), "expected image"),
    "raw pixels": (parquet(image=pa.array([b"12"] * 4, pa.binary(2)), label=LABELS), r"image \(fixed_size_binary\[2\]"),
    "other columns": (parquet(img=IMAGES, fine_label=LABELS), r"are img \(binary\), fine_label \(string\); expected"),
    "booleans": (parquet(image=IMAGES, label=[True] * 4), r"label \(bool\); expected"),
    "dictionary": (parquet(image=IMAGES, label=pa.array(LABELS).dictionary_encode()), r"label \(dictionary<.*expected"),
    "bare numbers": (
        labelled([0, 1]),
        "whole numbers, but the metadata has no class names that can be read; expected image",
    ),
    "nested names": (labelled([0, 1], {"classes": "[" * 100_000}), "the metadata has no class names that can be read"),
    "half a character": (labelled([0, 1], {"classes": '["a", "\\ud800"]'}), "has no class names that can be read"),
    "names twice": (labelled([0, 1], {"classes": '["a", "a"]'}), "two classes named 'a'; names must be unique"),
    "class not in test": (labelled(["cats"]), r"test.*has rows of class cat, .* \[cat, dog\], those of .* \[cats\];"),
    "no rows": (
        parquet(image=pa.array([], pa.binary()), label=pa.array([], pa.string())),
        "split train has a label: all 0",
    ),
    "no label at all": (
        labelled(["", "", "", ""]),
        "no row of split train has a label: all 4 are -1 or empty, as in tr",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_file_that_cannot_be_used_is_refused_at_once_in_one_line_with_the_next_step(tmp_path: Path, kind: str) -> None:
    content, message = REFUSED[kind]
    with pytest.raises(ValueError, match=message) as caught:
        ingested(tmp_path, {"train-0.parquet": content, "test.parquet": GOOD})
    assert "\n" not in str(caught.value) and "parquet" in str(caught.value)
    assert error_policy.is_permanent(caught.value), "it is not tried again"


def test_train_must_have_two_classes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two different labels, got .*'cat'.*; -1 means no label"):
        ingested(tmp_path, {f"{split}.parquet": labelled(["cat", "cat"]) for split in ("train", "test")})


def test_an_error_of_the_disk_while_a_file_is_read_is_no_damage_of_the_file() -> None:
    class FailingDisk(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        parquet_files.opened(FailingDisk(GOOD))


def test_of_a_large_file_one_part_is_in_memory_at_a_time(tmp_path: Path) -> None:
    rows, width = 20_000, 3_072
    pixels = np.random.default_rng(0).integers(0, 256, (rows, width), dtype=np.uint8)
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(pixels)])
    table = pa.table({"image": column.cast(pa.binary()), "label": [str(row % 2) for row in range(rows)]})
    pq.write_table(table, tmp_path / "large.parquet")
    del column, table
    bounds = [(start, start + 1_000) for start in range(0, rows, 1_000)]
    before, seen, most = pa.total_allocated_bytes(), 0, 0
    for table in parquet_files.ranges(parquet_files.opened(tmp_path / "large.parquet"), bounds):
        assert table["image"][0].as_py() == pixels[seen].tobytes()
        seen += len(table)
        most = max(most, pa.total_allocated_bytes() - before)
    assert seen == rows and most < pixels.nbytes / 3, f"{most / 1e6:.0f} of {pixels.nbytes / 1e6:.0f} MB at once"
