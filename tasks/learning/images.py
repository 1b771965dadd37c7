"""Images as rows of Arrow tables: pixels of fixed size, converted to arrays without a copy, or their files' bytes."""

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage import process
from tasks.learning import decode

T = TypeVar("T")
_PART_BYTES = 64 * 2**20
_ENCODED_PART_BYTES = 16 * 2**20
"""Most bytes of a part of encoded images: one task decodes a part, so that there must be parts for many CPUs."""
_PIECE_BYTES = 2**20
"""Bytes of encoded images that a thread decodes at a time: handing them over costs as much as a tenth of a photo."""
_MIN_PARTS = 4
MOST_COMPARED = 50_000
"""Most images among which near duplicates are looked for: the time grows with the square of their number."""
TOO_MANY = (
    f"group=near-duplicates compares at most {MOST_COMPARED:,} images of your own; use group=folder or group=none"
)
FILES = "files"
"""Value of `store` of images that are stored as their files' bytes."""


def schema(image_shape: Sequence[int], classes: Sequence[str], *, store: str = "pixels") -> pa.Schema:
    """Build a schema: columns id, image and label; shape and classes as metadata.

    Images are raw uint8 (HWC); with `store` `files` the bytes of files, which decode to that shape.
    """
    is_files = store == FILES
    stored = pa.binary() if is_files else pa.binary(int(np.prod(image_shape)))
    metadata = {"shape": json.dumps(list(image_shape)), "dtype": "uint8", "classes": json.dumps(list(classes))}
    metadata |= {"store": FILES} if is_files else {}
    return pa.schema([("id", pa.int64()), ("image", stored), ("label", pa.int64())], metadata=metadata)


def to_table(ids: np.ndarray, images: np.ndarray, labels: np.ndarray, *, classes: Sequence[str]) -> pa.Table:
    """Build a table of images (uint8, (N, H, W, C); memory is shared) with ids and labels (int64, (N,))."""
    assert images.dtype == np.uint8 and images.ndim == 4 and len(ids) == len(images) == len(labels)
    columns = schema(images.shape[1:], classes)
    content = pa.py_buffer(np.ascontiguousarray(images))
    stored = pa.FixedSizeBinaryArray.from_buffers(columns.field("image").type, len(images), [None, content])
    return pa.table([pa.array(ids, pa.int64()), stored, pa.array(labels, pa.int64())], schema=columns)


def shape_of(metadata: Mapping[str, str]) -> tuple[int, int, int]:
    """Read height, width and channels from a schema's metadata."""
    height, width, channels = json.loads(metadata["shape"])
    return height, width, channels


def store_of(metadata: Mapping[str, str]) -> str:
    """Read from a schema's metadata how images are stored: as `pixels` or `files`."""
    return metadata.get("store", "pixels")


def classes_of(metadata: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(json.loads(metadata["classes"]))


def in_pieces(function: Callable[[pa.Table], T], tables: Iterable[pa.Table], *, threads: int) -> Iterator[T]:
    """Yield `function` of each few encoded images, in order, however many `threads` there are."""
    pieces = itertools.chain.from_iterable(map(_pieces, tables))
    return process.in_threads(function, pieces, threads=threads, ahead=threads)


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    lengths = pc.fill_null(pc.binary_length(table["image"]), 0).to_numpy()
    starts = np.flatnonzero(np.diff((np.cumsum(lengths) - lengths) // _PIECE_BYTES, prepend=-1))
    return (table.slice(start, stop - start) for start, stop in itertools.pairwise([*starts, len(table)]))


def to_arrays(table: pa.Table, shape: Sequence[int], *, threads: int = 1) -> tuple[np.ndarray, np.ndarray | None]:
    """Return images (uint8, (N, H, W, C), read-only) and labels (none if missing).

    Decoded images are a view if `table` has one chunk. Encoded ones are decoded, in `threads` threads, and resized; a
    missing one is black.
    """
    column, row_bytes = table["image"], int(np.prod(shape))
    labels = table["label"].to_numpy() if "label" in table.column_names else None
    if pa.types.is_binary(column.type):
        decode_all = functools.partial(_decoded, shape=shape)
        is_split = threads > 1 and len(table) > 0
        pixels = np.concatenate([*in_pieces(decode_all, [table], threads=threads)]) if is_split else decode_all(table)
        pixels.flags.writeable = False
        return pixels, labels
    # combine_chunks copies even a single chunk.
    chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    flat = np.frombuffer(chunk.buffers()[1], dtype=np.uint8) if len(chunk) else np.empty(0, np.uint8)
    flat = flat[chunk.offset * row_bytes : (chunk.offset + len(chunk)) * row_bytes]
    flat.flags.writeable = False
    return flat.reshape(len(chunk), *shape), labels


def _decoded(table: pa.Table, shape: Sequence[int]) -> np.ndarray:
    (height, _, channels), column = shape, table["image"]
    pixels = np.zeros((len(column), *shape), np.uint8)
    for number, content in enumerate(column):
        if content.is_valid:
            picture = decode.decoded(content.as_py(), height, channels)
            pixels[number] = np.frombuffer(picture.pixels, np.uint8).reshape(shape)
    return pixels


def num_parts(num_rows: int, image_shape: Sequence[int], *, encoded_bytes: int = 0) -> int:
    """Return the number of files of a split: at least 4 if it has as many rows, each at most 64 MiB or one image.

    If the rows are encoded images of `encoded_bytes` in total, at most about 16 MiB, of them and of their pixels.
    """
    limit, row_bytes = _PART_BYTES, int(np.prod(image_shape))
    if encoded_bytes and num_rows:
        limit, row_bytes = _ENCODED_PART_BYTES, max(row_bytes, encoded_bytes // num_rows)
    needed = math.ceil(num_rows / max(1, limit // row_bytes))
    return max(1, min(num_rows, max(_MIN_PARTS, needed)))


def part_bounds(num_rows: int, parts: int) -> list[tuple[int, int]]:
    """Return first and one-past-last row of each of `parts` parts, whose sizes differ by at most one."""
    edges = [num_rows * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(edges))
