"""Parquet files from other sources: images as bytes, structs or raw pixels, labels as numbers or text."""

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
LABELS = [0, 1, 0, 1]


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


def hugging_face(names: list[str]) -> dict[str, str]:
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    return {"huggingface": json.dumps({"info": {"features": features}})}


WRITTEN = {
    "bytes": parquet(image=IMAGES, label=LABELS),
    "struct": parquet(img=[{"bytes": image, "path": "x.png"} for image in IMAGES], label=LABELS),
    "large": parquet(picture=pa.array(IMAGES, pa.large_binary()), label=pa.array(LABELS, pa.uint8())),
    "text": parquet(id=[1, 2, 3, 4], image=IMAGES, label=["0", "1", "0", "1"]),
    "dictionary": parquet(image=IMAGES, label=pa.array(["0", "1", "0", "1"]).dictionary_encode()),
    "names": parquet(hugging_face(["cat", "dog", "owl"]), image=IMAGES, label=LABELS),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_images_and_labels_are_found_in_whatever_form(kind: str) -> None:
    classes = class_names.of_files([survey(WRITTEN[kind])])
    assert classes == (("cat", "dog", "owl") if kind == "names" else ("0", "1"))
    assert rows(WRITTEN[kind], classes)[:2] == rows(WRITTEN["bytes"])[:2]


def test_classes_are_those_of_all_files_together() -> None:
    surveyed = [survey(parquet(image=IMAGES, label=labels)) for labels in (["b"] * 4, ["a", "c", "a", None])]
    assert class_names.of_files(surveyed) == ("a", "b", "c")
    assert rows(parquet(image=IMAGES, label=["c", None, "a", "b"]), ("a", "b", "c"))[1] == [2, None, 0, 1]


def test_numbers_that_do_not_begin_at_zero_are_classes_in_their_order() -> None:
    content = parquet(image=IMAGES, label=[10, 2, 10, 7])
    assert class_names.of_files([survey(content)]) == ("2", "7", "10")
    assert rows(content, ("2", "7", "10"))[1] == [2, 0, 2, 1]


def test_images_that_are_missing_or_broken_have_no_pixels_and_a_reason() -> None:
    content = parquet(image=[IMAGES[0], None, b"broken", IMAGES[3]], label=LABELS)
    pixels, _, problems = rows(content)
    assert [one is None for one in pixels] == [False, True, True, False]
    assert problems == ["", pieces.MISSING, problems[2], ""] and problems[2].startswith(
        "not an image in a supported format"
    )


@pytest.mark.parametrize("shape", [(4, 6, 3), (8, 8, 1)])
def test_raw_pixels_have_the_shape_of_the_metadata(shape: tuple[int, int, int]) -> None:
    images = np.arange(2 * np.prod(shape), dtype=np.uint8).reshape(2, -1)
    stored = pa.array([image.tobytes() for image in images], pa.binary(images.shape[1]))
    decoded, _, _ = rows(parquet({"shape": json.dumps(shape)}, image=stored, label=[0, 1]), channels=shape[2])
    assert [(one.height, one.width) for one in decoded if one] == [shape[:2]] * 2
    if shape == (8, 8, 1):
        assert [one.pixels for one in decoded if one] == [image.tobytes() for image in images]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no parquet", "this Parquet file cannot be read: .*not a parquet file"),
        (parquet(label=LABELS), "a column image .or img. of images: .*; the columns are label .int64."),
        (parquet(image=IMAGES), "a column of labels .*; the columns are image .binary.: rename"),
        (parquet(image=IMAGES, label=[True] * 4), "column label has neither whole numbers nor text, but bool; convert"),
        (parquet(image=IMAGES, label=LABELS, target=LABELS), "labels are in column label and in column target; keep"),
        (
            parquet(image=pa.array([b"1234"] * 4, pa.binary(4)), label=LABELS),
            "raw images of 4 bytes must have",
        ),
    ],
)
def test_a_file_without_images_or_labels_is_refused_with_what_it_has(content: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        survey(content), rows(content)


def test_an_error_of_the_disk_while_a_file_is_read_is_no_damage_of_the_file() -> None:
    class FailingDisk(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        parquet_reader.opened(FailingDisk(parquet(image=IMAGES, label=LABELS)))


def test_file_names_instead_of_images_are_named_with_what_to_do() -> None:
    structs = [{"bytes": None, "path": f"cat {number}.png"} for number in range(3)] + [{"bytes": None, "path": None}]
    content = parquet(image=pa.array(structs, pa.struct({"bytes": pa.binary(), "path": pa.string()})), label=LABELS)
    _, _, problems = rows(content)
    assert problems[0] == "the file name 'cat 0.png' instead of the image: store its bytes"
    assert problems[3] == pieces.MISSING
    with pytest.raises(ValueError, match=r"images: bytes, .*, not file names; the columns are image \(string\)"):
        survey(parquet(image=["a.png"] * 4, label=LABELS))


def test_of_a_large_file_one_part_is_in_memory_at_a_time(tmp_path: Path) -> None:
    rows, width = 20_000, 3_072
    pixels = np.random.default_rng(0).integers(0, 256, (rows, width), dtype=np.uint8)
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(pixels)])
    pq.write_table(pa.table({"image": column, "label": np.arange(rows) % 2}), tmp_path / "large.parquet")
    del column
    bounds = [(start, start + 1_000) for start in range(0, rows, 1_000)]
    before, seen, most = pa.total_allocated_bytes(), 0, 0
    for table in parquet_reader.tables(parquet_reader.opened(tmp_path / "large.parquet"), bounds):
        assert table["image"][0].as_py() == pixels[seen].tobytes()
        seen += len(table)
        most = max(most, pa.total_allocated_bytes() - before)
    assert seen == rows and most < pixels.nbytes / 3, f"{most / 1e6:.0f} of {pixels.nbytes / 1e6:.0f} MB at once"
