"""Images as rows of Arrow tables: raw bytes of fixed size, converted to arrays without a copy."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

_PART_BYTES = 64 * 2**20
_MIN_PARTS = 4


def schema(image_shape: Sequence[int], classes: Sequence[str], *, labelled: bool = True) -> pa.Schema:
    """Build a schema: columns id, image (raw uint8, HWC) and, if `labelled`, label; shape and classes as metadata."""
    fields = [("id", pa.int64()), ("image", pa.binary(int(np.prod(image_shape))))]
    metadata = {"shape": json.dumps(list(image_shape)), "dtype": "uint8", "classes": json.dumps(list(classes))}
    return pa.schema(fields + [("label", pa.int64())] * labelled, metadata=metadata)


def to_table(ids: np.ndarray, images: np.ndarray, labels: np.ndarray, *, classes: Sequence[str]) -> pa.Table:
    """Build a table of images (uint8, (N, H, W, C); memory is shared) with ids and labels (int64, (N,))."""
    assert images.dtype == np.uint8 and images.ndim == 4 and len(ids) == len(images) == len(labels)
    columns = schema(images.shape[1:], classes)
    content = pa.py_buffer(np.ascontiguousarray(images))
    stored = pa.FixedSizeBinaryArray.from_buffers(columns.field("image").type, len(images), [None, content])
    return pa.table([pa.array(ids, pa.int64()), stored, pa.array(labels, pa.int64())], schema=columns)


def shape_of(metadata: Mapping[str, str]) -> tuple[int, int, int]:
    """Read height, width and channels from a schema's metadata; raises `ValueError` if it has no image shape."""
    if metadata.get("dtype") != "uint8" or "shape" not in metadata:
        raise ValueError("the schema's metadata has no image shape; write tables with tasks.learning.images.to_table")
    height, width, channels = json.loads(metadata["shape"])
    return height, width, channels


def classes_of(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Read the name of each label, from 0, from a schema's metadata."""
    return tuple(json.loads(metadata["classes"]))


def to_arrays(table: pa.Table, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return images (uint8, (N, H, W, C), read-only, a view if `table` has one chunk) and labels (none if missing)."""
    column = table["image"]
    # combine_chunks copies even a single chunk.
    chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    row_bytes = int(np.prod(shape))
    flat = np.frombuffer(chunk.buffers()[1], dtype=np.uint8) if len(chunk) else np.empty(0, np.uint8)
    flat = flat[chunk.offset * row_bytes : (chunk.offset + len(chunk)) * row_bytes]
    flat.flags.writeable = False
    labels = table["label"].to_numpy() if "label" in table.column_names else None
    return flat.reshape(len(chunk), *shape), labels


def with_names(table: pa.Table) -> Iterator[tuple[np.ndarray, str]]:
    """Yield each image (uint8, (H, W, C)) of a labelled table made by `to_table`, with the name of its class."""
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    pixels, labels = to_arrays(table, shape_of(metadata))
    assert labels is not None, "the table has no labels"
    classes = classes_of(metadata)
    yield from ((image, classes[label]) for image, label in zip(pixels, labels, strict=True))


def num_parts(num_rows: int, image_shape: Sequence[int]) -> int:
    """Return the number of files of a split: at least 4 if it has as many rows, each at most 64 MiB or one image."""
    rows_per_part = max(1, _PART_BYTES // int(np.prod(image_shape)))
    needed = -(-num_rows // rows_per_part)
    return max(1, min(num_rows, max(_MIN_PARTS, needed)))


def part_bounds(num_rows: int, parts: int) -> list[tuple[int, int]]:
    """Return first and one-past-last row of each of `parts` parts, whose sizes differ by at most one."""
    edges = [num_rows * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(edges))
