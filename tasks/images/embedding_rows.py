"""Rows of embeddings: their columns, and what is read of them."""

import dataclasses
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage import manifest, tables
from storage.kinds import EMBEDDINGS
from storage.uri import DatasetURI, EmbeddingsURI
from tasks.images import thumbnail_parts
from tasks.learning import thumbnails

DIGEST = 16
"""Bytes of an image's digest."""
MOST_KNOWN = 20_000
"""Images, at most, among which the nearest one is looked for."""


def schema(dimensions: int) -> pa.Schema:
    """Return the columns: id and label as in the dataset, digest of the pixels, and embedding."""
    vector = pa.list_(pa.field("element", pa.float16()), dimensions)  # as Parquet names it
    columns = {"id": pa.int64(), "label": pa.int64(), "digest": pa.binary(DIGEST), "embedding": vector}
    return pa.schema(columns)


def column(embeddings: np.ndarray) -> pa.FixedSizeListArray:
    """Return embeddings (float16, (N, dimensions)) as a column."""
    vector = schema(embeddings.shape[1]).field("embedding").type
    return pa.FixedSizeListArray.from_arrays(pa.array(embeddings.reshape(-1)), type=vector)


def vectors(table: pa.Table) -> np.ndarray:
    """Return the column `embedding` as an array, float16 (N, dimensions)."""
    values = table["embedding"].combine_chunks()
    return np.asarray(values.flatten().to_numpy().reshape(len(values), -1))


def directions(embeddings: np.ndarray) -> np.ndarray:
    """Return embeddings scaled to length 1, float32: their products are cosines, 1 for equal directions."""
    plain = embeddings.astype(np.float32)
    return np.asarray(plain / np.maximum(np.linalg.norm(plain, axis=1, keepdims=True), np.finfo(np.float32).tiny))


def known_directions(uri: EmbeddingsURI) -> np.ndarray:
    """Return the directions of training and validation images: of many, those with the lowest digests."""
    rows = read(uri, "train", "validation")
    return directions(rows.vectors[pc.sort_indices(rows.digests).to_numpy()[:MOST_KNOWN]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddedRows:
    """Rows of some splits of a dataset."""

    classes: tuple[str, ...]
    dataset: DatasetURI
    """The dataset, prepared or raw."""
    splits: np.ndarray
    """Split of the raw dataset, str (N,): validation rows are of train."""
    ids: np.ndarray
    """int64 (N,)."""
    labels: np.ndarray
    """int64 (N,); -1: unknown."""
    digests: pa.ChunkedArray
    """Of the pixels, 16 bytes each."""
    vectors: np.ndarray
    """Embeddings, float16 (N, dimensions)."""

    @property
    def raw(self) -> DatasetURI:
        """The raw dataset."""
        return DatasetURI(manifest.load(self.dataset).parent("raw", of=self.dataset))

    def where(self, is_kept: np.ndarray) -> Self:
        """Return the rows for which `is_kept`, bool (N,), is true."""
        kept = {name: getattr(self, name)[is_kept] for name in ("splits", "ids", "labels", "vectors")}
        return dataclasses.replace(self, digests=self.digests.filter(pa.array(is_kept)), **kept)

    def copies(self) -> np.ndarray:
        """Return a number for each row, from 0 in the order of the rows; equal images have the same."""
        return np.asarray(pc.index_in(self.digests, value_set=pc.unique(self.digests)).to_numpy())

    def groups(self) -> np.ndarray:
        """Return a number for each row; equal images, and near duplicates if there are thumbnails, have the same."""
        number = self.copies()
        raw = manifest.load(self.raw)
        splits, num_train = ("train", "test"), raw.num_rows("train")
        place = self.ids + np.where(self.splits == "test", num_train, 0)
        row_at = np.full(num_train + raw.num_rows("test"), -1)
        row_at[place] = np.arange(len(place))
        near = thumbnail_parts.find_pairs(self.raw, raw, splits=splits, is_usable=row_at >= 0)
        return number if near is None else np.asarray(thumbnails.groups(number[row_at[near[0]]], len(number))[number])


def read(uri: EmbeddingsURI, *splits: str) -> EmbeddedRows:
    """Read the rows of `splits`, by default of all, in order."""
    embedded = manifest.load(uri)
    listed = [file for file in embedded.files if not splits or file.split in splits]
    parts = [tables.read_part(uri, file) for file in listed]
    of_raw = ["train" if file.split == "validation" else str(file.split) for file in listed]
    role = "prepared" if "prepared" in embedded.parents else "raw"
    table = pa.concat_tables(parts)
    return EmbeddedRows(
        classes=embedded.statistics_of(EMBEDDINGS).model.classes,
        dataset=DatasetURI(embedded.parent(role, of=uri)),
        splits=np.repeat(of_raw, [len(part) for part in parts]),
        ids=table["id"].to_numpy(),
        labels=table["label"].fill_null(-1).to_numpy(),
        digests=table["digest"],
        vectors=vectors(table),
    )
