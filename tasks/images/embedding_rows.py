"""Rows of embeddings: their columns, and what is read of them."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from storage import commits, manifest, tables
from storage.kinds import EMBEDDINGS, DatasetURI, EmbeddingsURI
from storage.manifest import File
from tasks.images import row_tables
from tasks.learning import images

DIGEST = 16
"""Bytes of an image's digest."""
MOST_KNOWN = 20_000
"""Images, at most, among which the nearest one is looked for."""
_PAIRS = "pairs"
"""Start of the name of the table of near duplicates: numbers of rows over all parts."""


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
    pairs: np.ndarray
    """Rows of near duplicates, int64 (P, 2); none if they were not looked for, or only some splits were read."""

    @property
    def raw(self) -> DatasetURI:
        return DatasetURI(manifest.load(self.dataset).parent("raw", of=self.dataset))

    def where(self, is_kept: np.ndarray) -> Self:
        """Return the rows for which `is_kept`, bool (N,), is true."""
        kept = {name: getattr(self, name)[is_kept] for name in ("splits", "ids", "labels", "vectors")}
        return dataclasses.replace(self, digests=self.digests.filter(pa.array(is_kept)), pairs=self.pairs[:0], **kept)

    def copies(self) -> np.ndarray:
        """Return a number for each row, from 0 in the order of the rows; equal images have the same."""
        return np.asarray(pc.index_in(self.digests, value_set=pc.unique(self.digests)).to_numpy())

    def groups(self) -> np.ndarray:
        """Return a number for each row; equal images and near duplicates have the same."""
        number = self.copies()
        links = sparse.coo_array((np.ones(len(self.pairs)), number[self.pairs].T), shape=(len(number), len(number)))
        return np.asarray(sparse.csgraph.connected_components(links, directed=False)[1][number])


def read(uri: EmbeddingsURI, *splits: str) -> EmbeddedRows:
    """Read the rows of `splits`, by default of all, in order."""
    embedded = manifest.load(uri)
    role = "prepared" if "prepared" in embedded.parents else "raw"
    listed = [file for file in embedded.files if file.split and (not splits or file.split in splits)]
    rows = read_parts(
        uri,
        listed,
        dataset=DatasetURI(embedded.parent(role, of=uri)),
        classes=embedded.statistics_of(EMBEDDINGS).model.classes,
    )
    if splits or not (file := embedded.file(_PAIRS)):
        return rows
    return dataclasses.replace(rows, pairs=tables.read_part(uri, file).to_pandas().to_numpy())


def read_parts(
    uri: EmbeddingsURI, listed: Sequence[File], *, dataset: DatasetURI, classes: tuple[str, ...]
) -> EmbeddedRows:
    """Read the rows of `listed` parts, which may not be committed yet."""
    table = pa.concat_tables([tables.read_part(uri, file) for file in listed])
    of_raw = ["train" if file.split == "validation" else str(file.split) for file in listed]
    return EmbeddedRows(
        classes=classes,
        dataset=dataset,
        splits=np.repeat(of_raw, [file.rows or 0 for file in listed]),
        ids=table["id"].to_numpy(),
        labels=table["label"].fill_null(-1).to_numpy(),
        digests=table["digest"],
        vectors=vectors(table),
        pairs=np.empty((0, 2), np.int64),
    )


def write_pairs(uri: EmbeddingsURI, pairs: np.ndarray) -> File:
    """Write the near duplicates, int64 (P, 2), beside the parts; return the file's manifest entry."""
    table = pa.table({"first": pairs[:, 0], "second": pairs[:, 1]})
    return commits.write_file(uri, f"{_PAIRS}.parquet", tables.encode(table))


def groups_of_files(uri: EmbeddingsURI) -> dict[tuple[str, int | None], int]:
    """Return the group of each image by its file, and for Parquet the row in it; refuse if nobody looked for pairs."""
    if manifest.load(uri).statistics_of(EMBEDDINGS).near_duplicates is None:
        raise ValueError(images.TOO_MANY)
    rows = read(uri)
    named = row_tables.with_files(pd.DataFrame({"split": rows.splits, "id": rows.ids}), rows.dataset)
    return dict(zip(zip(named["file"], named["row"], strict=True), rows.groups().tolist(), strict=True))
