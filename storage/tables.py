"""Parquet parts: written once under a name that contains their digest, and verified on every read."""

import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq

from storage import commits, files, manifest
from storage.manifest import File
from storage.uri import URI


def write_part(uri: URI, table: pa.Table, *, split: str, index: int) -> File:
    """Write `table` as part `index` of `split`; return its manifest entry. Equal tables give equal bytes."""
    return write_encoded(uri, encode(table), rows=table.num_rows, split=split, index=index)


def encode(table: pa.Table) -> bytes:
    """Encode `table` as Parquet: zstd, page checksums, no dictionary for binary columns since images do not repeat."""
    binary = [field.name for field in table.schema if pa.types.is_fixed_size_binary(field.type)]
    dictionary = [field.name for field in table.schema if field.name not in binary]
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=dictionary,
        write_page_checksum=True,
        row_group_size=max(1, table.num_rows),
    )
    return sink.getvalue()


def write_encoded(uri: URI, content: bytes, *, rows: int, split: str, index: int) -> File:
    """Write `content`, which `encode` made from `rows` rows, as part `index` of `split`; return its manifest entry."""
    return commits.write_file(uri, f"{split}/part-{index:05d}.parquet", content, split=split, rows=rows)


def entry(uri: URI, path: str, *, split: str) -> File | None:
    """Return the manifest entry of a part that `write_part` wrote; none if its content does not match its name."""
    manifest.check_place(uri, path)
    content = files.read(uri.child(path))
    digest = hashlib.sha256(content).hexdigest()
    if not path.endswith(f"-{digest[: manifest.DIGEST_LENGTH]}.parquet"):
        return None
    rows = pq.read_metadata(pa.BufferReader(content)).num_rows
    return File(path=path, split=split, size=len(content), rows=rows, sha256=digest)


def read_part(uri: URI, file: File, *, columns: list[str] | None = None) -> pa.Table:
    """Read the table of one listed file; raises `manifest.Damaged` if its bytes are not those that were committed."""
    content = manifest.read_file(uri, file)
    return pq.read_table(pa.BufferReader(content), columns=columns, page_checksum_verification=True)


def read_split(uri: URI, split: str | None = None, *, columns: list[str] | None = None) -> pa.Table:
    """Read all rows of one split (none: of all files) into memory, in the manifest's order."""
    listed = manifest.load(uri).split(split)
    if not listed:
        raise ValueError(f"{uri} has no rows in split {split!r}")
    return pa.concat_tables([read_part(uri, file, columns=columns) for file in listed])


def describe(schema: pa.Schema) -> dict[str, object]:
    """Convert `schema` to the form that a manifest stores: columns with their types, and metadata."""
    metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    return {"columns": {field.name: str(field.type) for field in schema}, "metadata": metadata}
