"""Images as rows of tables: reading returns what was written, without a copy if there is one chunk."""

import numpy as np
import pyarrow as pa
import pytest

from tasks.learning import images

SHAPE = (4, 3, 2)
COUNT = 20
CLASSES = ("even", "odd")


@pytest.fixture
def pixels() -> np.ndarray:
    """Twenty different images that are no squares and have two channels."""
    return np.random.default_rng(0).integers(0, 256, (COUNT, *SHAPE), dtype=np.uint8)


@pytest.fixture
def table(pixels: np.ndarray) -> pa.Table:
    """The same as a table in one chunk."""
    return images.to_table(np.arange(COUNT) + 100, pixels, np.arange(COUNT) % 2, classes=CLASSES)


def buffer(table: pa.Table) -> np.ndarray:
    """The bytes that Arrow holds of the first chunk of images."""
    return np.frombuffer(table["image"].chunk(0).buffers()[1], dtype=np.uint8)


def test_table_holds_the_memory_of_its_images_typed_and_described(table: pa.Table, pixels: np.ndarray) -> None:
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {"id": "int64", "image": "fixed_size_binary[24]", "label": "int64"}
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert (images.shape_of(metadata), images.classes_of(metadata)) == (SHAPE, CLASSES)
    assert np.shares_memory(buffer(table), pixels)
    assert [value.as_py() for value in table["image"]] == [image.tobytes() for image in pixels]
    backwards = images.to_table(np.arange(10), pixels[::-2], np.zeros(10, np.int64), classes=CLASSES)
    assert np.array_equal(images.to_arrays(backwards, SHAPE)[0], pixels[::-2]), "not contiguous"


@pytest.mark.parametrize(("start", "length"), [(0, COUNT), (5, 7), (19, 1), (5, 0)])
def test_slice_of_a_table_is_a_view_that_cannot_be_written_to(
    table: pa.Table, pixels: np.ndarray, start: int, length: int
) -> None:
    arrays, labels = images.to_arrays(table.slice(start, length), SHAPE)
    assert labels is not None and np.array_equal(labels, np.arange(start, start + length) % 2)
    assert np.array_equal(arrays, pixels[start : start + length])
    assert np.shares_memory(arrays, buffer(table)) == bool(length) and not arrays.flags.writeable


def test_chunks_come_in_order_and_there_may_be_none_or_no_labels(table: pa.Table, pixels: np.ndarray) -> None:
    chunked = pa.concat_tables([table.slice(12, 5), table.slice(0, 0), table.slice(3, 6)]).slice(2, 7)
    assert chunked["image"].num_chunks > 1
    arrays, labels = images.to_arrays(chunked, SHAPE)
    chosen = [14, 15, 16, 3, 4, 5, 6]
    assert labels is not None and np.array_equal(labels, np.array(chosen) % 2)
    assert np.array_equal(arrays, pixels[chosen])
    assert images.to_arrays(table.schema.empty_table(), SHAPE)[0].shape == (0, *SHAPE)
    assert images.to_arrays(table.drop_columns("label"), SHAPE)[1] is None


@pytest.mark.parametrize("shape", [(28, 28, 1), (2**12, 2**12, 4), (2**13, 2**13, 3)])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 9, 64, 5_001])
def test_parts_hold_every_row_once_for_four_workers_and_are_no_larger_than_64_mib(
    num_rows: int, shape: tuple[int, int, int]
) -> None:
    bounds = images.part_bounds(num_rows, images.num_parts(num_rows, shape))
    starts, stops = zip(*bounds, strict=True)
    assert starts == (0, *stops[:-1]) and stops[-1] == num_rows
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1 and min(sizes) >= min(1, num_rows)
    assert max(sizes) <= max(1, 64 * 2**20 // int(np.prod(shape))) and len(sizes) >= max(1, min(4, num_rows))
