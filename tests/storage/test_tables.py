"""Parquet parts: reading returns what was written, or fails."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from storage import files, tables
from storage.kinds import DatasetURI
from tests import committed

METADATA = {"image_shape": "[28, 28, 1]", "classes": '["zero", "one"]'}


@pytest.fixture
def uri(tmp_path: Path) -> DatasetURI:
    """A place where nothing is committed yet."""
    return DatasetURI(f"{tmp_path}/datasets/raw/mnist-0123456789ab")


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
    assert tables.read_part(uri, file, columns=["label"]).equals(images(count).select(["label"]))


def test_same_table_has_the_same_bytes_and_name_and_another_table_another_name(uri: DatasetURI) -> None:
    first, again = (tables.write_part(uri, images(), split="train", index=0) for _ in range(2))
    assert again == first
    assert tables.write_part(uri, images(seed=1), split="train", index=0).path != first.path
    assert tables.entry(uri, first.path, split="train") == first
    files.put(uri.child(first.path), files.read(uri.child(first.path))[:-1])
    assert tables.entry(uri, first.path, split="train") is None, "it was cut off"


def test_split_is_read_in_the_order_of_the_manifest_without_strays(uri: DatasetURI) -> None:
    parts = [images(seed=seed) for seed in range(3)]
    listed = [tables.write_part(uri, part, split="train", index=index) for index, part in enumerate(parts)]
    test = tables.write_part(uri, images(seed=9), split="test", index=0)
    tables.write_part(uri, images(seed=7), split="train", index=1)
    committed.commit(uri, "raw", [*listed, test])
    assert tables.read_split(uri, "train").equals(pa.concat_tables(parts))
    with pytest.raises(ValueError, match="no rows in split 'validation'"):
        tables.read_split(uri, "validation")
