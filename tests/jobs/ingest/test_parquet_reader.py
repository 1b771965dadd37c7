"""A user's Parquet files: images as bytes or structs with bytes, labels as text or named numbers."""

import errno
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.jobs.ingest import class_names, parquet_reader, pieces
from tasks.jobs.ingest.class_names import FileLabels
from tasks.jobs.spec import UserFile
from tasks.learning.decode import Decoded
from tests.image_folder import encoded

IMAGES = [encoded(number, number % 2) for number in range(4)]
LABELS = ["0", "1", "0", "1"]


def parquet(metadata: dict[str, str] | None = None, **columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), sink)
    return sink.getvalue()


def rows(
    content: bytes, classes: tuple[str, ...] = ("0", "1"), channels: int = 3
) -> tuple[list[Decoded | None], list[int | None], list[str]]:
    """Images, labels and problems of all rows of a file."""
    source = parquet_reader.opened(io.BytesIO(content))
    table = next(parquet_reader.tables(source, [(0, source.file.metadata.num_rows)]))
    return parquet_reader.rows(source, table, size=8, channels=channels, classes=classes)


def survey(content: bytes, path: str = "train.parquet") -> FileLabels:
    """What is known of a file before its images are read."""
    file = UserFile(path=path, split="train", label=None, size=len(content), digest="")
    return parquet_reader.survey(parquet_reader.opened(io.BytesIO(content)), file)


NAMED = {"classes": '["0", "1"]'}
HUGGING_FACE = json.dumps({"info": {"features": {"label": {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}}}})
WRITTEN = {
    "bytes": parquet(image=IMAGES, label=LABELS),
    "struct": parquet(image=[{"bytes": image, "path": "x.png"} for image in IMAGES], label=LABELS),
    "large": parquet(image=pa.array(IMAGES, pa.large_binary()), label=pa.array(LABELS, pa.large_string())),
    "numbers": parquet(NAMED, id=[1, 2, 3, 4], image=IMAGES, label=pa.array([0, 1, 0, 1], pa.uint8())),
    "Hugging Face": parquet({"huggingface": HUGGING_FACE}, image=IMAGES, label=[0, 1, 0, 1]),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_images_and_labels_are_read_in_each_form(kind: str) -> None:
    classes = class_names.of_files([survey(WRITTEN[kind])])
    assert classes == (("cat", "dog", "owl") if kind == "Hugging Face" else ("0", "1"))
    assert rows(WRITTEN[kind], classes)[:2] == rows(WRITTEN["bytes"])[:2]


def test_classes_are_those_of_all_files_together_and_whole_numbers_are_in_the_order_of_their_values() -> None:
    surveyed = [survey(parquet(image=IMAGES, label=labels)) for labels in (["10"] * 4, ["2", "7", "2", None])]
    assert class_names.of_files(surveyed) == ("2", "7", "10")
    assert rows(parquet(image=IMAGES, label=["10", None, "2", "7"]), ("2", "7", "10"))[1] == [2, None, 0, 1]


def test_images_that_are_missing_or_broken_have_no_pixels_and_a_reason() -> None:
    content = parquet(image=[IMAGES[0], None, b"broken", IMAGES[3]], label=LABELS)
    pixels, _, problems = rows(content)
    assert [one is None for one in pixels] == [False, True, True, False]
    assert problems == ["", pieces.MISSING, problems[2], ""] and problems[2].startswith(
        "not an image in a supported format"
    )


REFUSED = [
    (b"no parquet", "this Parquet file cannot be read: .*not a parquet file"),
    (parquet(label=LABELS), r"the columns are label \(string\); expected image \(the bytes .* such as pa.table"),
    (parquet(image=IMAGES), r"the columns are image \(binary\); expected"),
    (parquet(image=["a.png"] * 4, label=LABELS), r"the columns are image \(string\), label \(string\); expected"),
    (parquet(image=[{"path": "a.png"}] * 4, label=LABELS), "expected image"),
    (parquet(image=pa.array([b"1234"] * 4, pa.binary(4)), label=LABELS), r"image \(fixed_size_binary\[4\]\)"),
    (parquet(img=IMAGES, fine_label=LABELS), r"the columns are img \(binary\), fine_label \(string\); expected"),
    (parquet(image=IMAGES, label=[True] * 4), r"label \(bool\); expected"),
    (parquet(image=IMAGES, label=pa.array(LABELS).dictionary_encode()), r"label \(dictionary<.*\); expected"),
    (parquet(image=IMAGES, label=[0, 1, 0, 1]), "whole numbers, but the metadata has no class names; expected image"),
    (parquet({"classes": '["a", "a"]'}, image=IMAGES, label=[0, 1, 0, 1]), "two classes named 'a'; names must be"),
]


@pytest.mark.parametrize(("content", "says"), REFUSED)
def test_a_file_without_images_or_labels_is_refused_with_what_it_has_and_an_example(content: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        survey(content)
    assert "\n" not in str(caught.value)


def test_an_error_of_the_disk_while_a_file_is_read_is_no_damage_of_the_file() -> None:
    class FailingDisk(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        parquet_reader.opened(FailingDisk(parquet(image=IMAGES, label=LABELS)))


def test_file_names_instead_of_images_are_missing_images() -> None:
    structs = pa.array([{"bytes": None, "path": "a.png"}] * 4, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    assert rows(parquet(image=structs, label=LABELS))[2] == [pieces.MISSING] * 4


def test_of_a_large_file_one_part_is_in_memory_at_a_time(tmp_path: Path) -> None:
    rows, width = 20_000, 3_072
    pixels = np.random.default_rng(0).integers(0, 256, (rows, width), dtype=np.uint8)
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(pixels)])
    table = pa.table({"image": column.cast(pa.binary()), "label": [str(row % 2) for row in range(rows)]})
    pq.write_table(table, tmp_path / "large.parquet")
    del column, table
    bounds = [(start, start + 1_000) for start in range(0, rows, 1_000)]
    before, seen, most = pa.total_allocated_bytes(), 0, 0
    for table in parquet_reader.tables(parquet_reader.opened(tmp_path / "large.parquet"), bounds):
        assert table["image"][0].as_py() == pixels[seen].tobytes()
        seen += len(table)
        most = max(most, pa.total_allocated_bytes() - before)
    assert seen == rows and most < pixels.nbytes / 3, f"{most / 1e6:.0f} of {pixels.nbytes / 1e6:.0f} MB at once"
