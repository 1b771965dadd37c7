"""Parquet parts: reading returns what was written, or fails."""

import random

import pyarrow as pa
import pytest

from storage import commits, files, tables
from storage.manifest import Damaged
from storage.uri import DatasetURI, Root

METADATA = {"image_shape": "[28, 28, 1]", "classes": '["zero", "one"]'}


@pytest.fixture
def uri(root: Root) -> DatasetURI:
    """A place where nothing is committed yet."""
    return DatasetURI(root.child("datasets/raw/mnist-0123456789ab"))


def images(count: int = 50, *, seed: int = 0) -> pa.Table:
    """`count` random images as the design lays them out."""
    generator = random.Random(seed)
    columns = {
        "id": pa.array(range(count), pa.int64()),
        "image": pa.array([generator.randbytes(784) for _ in range(count)], pa.binary(784)),
        "label": pa.array([generator.randrange(10) for _ in range(count)], pa.int64()),
    }
    return pa.table(columns).replace_schema_metadata(METADATA)


@pytest.mark.parametrize("count", [50, 1, 0])
def test_table_comes_back_with_its_types_and_metadata(uri: DatasetURI, count: int) -> None:
    file = tables.write_part(uri, images(count), split="train", index=0)
    assert tables.read_part(uri, file).equals(images(count), check_metadata=True)


def test_same_table_has_the_same_bytes_and_name(uri: DatasetURI) -> None:
    first = tables.write_part(uri, images(), split="train", index=0)
    content = files.read(uri.child(first.path))
    assert tables.write_part(uri, images(), split="train", index=0) == first
    assert files.read(uri.child(first.path)) == content


def test_other_table_has_another_name(uri: DatasetURI) -> None:
    first = tables.write_part(uri, images(), split="train", index=0)
    assert tables.write_part(uri, images(seed=1), split="train", index=0).path != first.path


def test_flipped_byte_is_refused(uri: DatasetURI) -> None:
    file = tables.write_part(uri, images(), split="train", index=0)
    content = bytearray(files.read(uri.child(file.path)))
    content[len(content) // 2] ^= 1
    files.put(uri.child(file.path), bytes(content))
    with pytest.raises(Damaged, match="SHA-256"):
        tables.read_part(uri, file)


def test_entry_of_a_whole_part_is_the_one_it_was_written_with(uri: DatasetURI) -> None:
    file = tables.write_part(uri, images(), split="train", index=0)
    assert tables.entry(uri, file.path, split="train") == file


def test_cut_off_part_has_no_entry(uri: DatasetURI) -> None:
    file = tables.write_part(uri, images(), split="train", index=0)
    files.put(uri.child(file.path), files.read(uri.child(file.path))[:-1])
    assert tables.entry(uri, file.path, split="train") is None


def test_split_is_read_in_the_order_of_the_manifest_without_strays(uri: DatasetURI) -> None:
    parts = [images(seed=seed) for seed in range(3)]
    listed = [tables.write_part(uri, part, split="train", index=index) for index, part in enumerate(parts)]
    test = tables.write_part(uri, images(seed=9), split="test", index=0)
    tables.write_part(uri, images(seed=7), split="train", index=1)
    commits.commit(uri, kind="raw", parents={}, parameters={}, listed=[*listed, test])
    assert tables.read_split(uri, "train").equals(pa.concat_tables(parts))


def test_unknown_split_is_refused_by_name(uri: DatasetURI) -> None:
    listed = [tables.write_part(uri, images(), split="train", index=0)]
    commits.commit(uri, kind="raw", parents={}, parameters={}, listed=listed)
    with pytest.raises(ValueError, match="no rows in split 'validation'"):
        tables.read_split(uri, "validation")


def test_only_the_columns_asked_for_are_read(uri: DatasetURI) -> None:
    file = tables.write_part(uri, images(), split="train", index=0)
    assert tables.read_part(uri, file, columns=["label"]).column_names == ["label"]


def test_description_holds_types_and_metadata() -> None:
    described = tables.describe(images(1).schema)
    columns = {"id": "int64", "image": "fixed_size_binary[784]", "label": "int64"}
    assert described == {"columns": columns, "metadata": METADATA}
