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


class TestTable:
    def test_columns_are_typed_and_described(self, table: pa.Table) -> None:
        types = {field.name: str(field.type) for field in table.schema}
        assert types == {"id": "int64", "image": "fixed_size_binary[24]", "label": "int64"}
        metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
        assert (images.shape_of(metadata), images.classes_of(metadata)) == (SHAPE, CLASSES)

    def test_stored_bytes_are_the_pixels_row_by_row(self, table: pa.Table, pixels: np.ndarray) -> None:
        assert [value.as_py() for value in table["image"]] == [image.tobytes() for image in pixels]

    def test_table_shares_the_memory_of_its_images(self, table: pa.Table, pixels: np.ndarray) -> None:
        assert np.shares_memory(buffer(table), pixels)

    def test_images_that_are_not_contiguous_are_stored_right(self, pixels: np.ndarray) -> None:
        backwards = pixels[::-2]
        table = images.to_table(np.arange(10), backwards, np.zeros(10, np.int64), classes=CLASSES)
        assert np.array_equal(images.to_arrays(table, SHAPE)[0], backwards)

    def test_schema_of_something_else_is_refused(self) -> None:
        with pytest.raises(ValueError, match="has no image shape"):
            images.shape_of({"dtype": "float32", "shape": "[1, 1, 1]"})


class TestArrays:
    @pytest.mark.parametrize(("start", "length"), [(0, COUNT), (5, 7), (19, 1), (5, 0)])
    def test_slice_of_a_table_gives_its_own_rows(
        self, table: pa.Table, pixels: np.ndarray, start: int, length: int
    ) -> None:
        found, labels = images.to_arrays(table.slice(start, length), SHAPE)
        assert labels is not None
        assert np.array_equal(found, pixels[start : start + length])
        assert np.array_equal(labels, np.arange(start, start + length) % 2)

    def test_slice_is_a_view_and_cannot_be_written_to(self, table: pa.Table) -> None:
        found, _ = images.to_arrays(table.slice(5, 7), SHAPE)
        assert np.shares_memory(found, buffer(table))
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 0

    def test_chunks_and_slices_of_chunks_come_in_order(self, table: pa.Table, pixels: np.ndarray) -> None:
        chunked = pa.concat_tables([table.slice(12, 5), table.slice(0, 0), table.slice(3, 6)]).slice(2, 7)
        assert chunked["image"].num_chunks > 1
        found, labels = images.to_arrays(chunked, SHAPE)
        chosen = [14, 15, 16, 3, 4, 5, 6]
        assert labels is not None
        assert np.array_equal(found, pixels[chosen])
        assert np.array_equal(labels, np.array(chosen) % 2)

    def test_table_without_rows_gives_none(self, table: pa.Table) -> None:
        found, labels = images.to_arrays(table.schema.empty_table(), SHAPE)
        assert labels is not None
        assert (found.shape, len(labels)) == ((0, *SHAPE), 0)

    def test_table_without_labels_gives_no_labels(self, table: pa.Table) -> None:
        assert images.to_arrays(table.drop_columns("label"), SHAPE)[1] is None


@pytest.mark.parametrize("shape", [(28, 28, 1), (2**10, 2**10, 3), (2**12, 2**12, 4), (2**13, 2**13, 3)])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 8, 9, 63, 64, 1000, 85_599 * 9])
class TestParts:
    def test_parts_hold_every_row_once_and_differ_by_at_most_one(
        self, num_rows: int, shape: tuple[int, int, int]
    ) -> None:
        bounds = images.part_bounds(num_rows, images.num_parts(num_rows, shape))
        starts, stops = zip(*bounds, strict=True)
        assert starts == (0, *stops[:-1]) and stops[-1] == num_rows
        sizes = [stop - start for start, stop in bounds]
        assert max(sizes) - min(sizes) <= 1

    def test_no_part_is_empty_or_above_64_mib(self, num_rows: int, shape: tuple[int, int, int]) -> None:
        bounds = images.part_bounds(num_rows, images.num_parts(num_rows, shape))
        sizes = [stop - start for start, stop in bounds]
        assert min(sizes) >= min(1, num_rows)
        assert max(sizes) <= max(1, 64 * 2**20 // int(np.prod(shape)))

    def test_there_are_parts_for_four_workers(self, num_rows: int, shape: tuple[int, int, int]) -> None:
        assert images.num_parts(num_rows, shape) >= max(1, min(4, num_rows))
