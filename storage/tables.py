"""Parquet parts: written once under a name that contains their digest, and verified on every read."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from storage import commits, files, manifest
from storage.manifest import File
from storage.uri import URI


def write_part(uri: URI, table: pa.Table, *, split: str, index: int) -> File:
    """Write `table` as part `index` of `split`; return its manifest entry. Equal tables give equal bytes."""
    path = f"{split}/part-{index:05d}.parquet"
    return commits.write_file(uri, path, encode(table), split=split, rows=table.num_rows)


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


def entry(uri: URI, path: str, *, split: str) -> File | None:
    """Return the manifest entry of a part that `write_part` wrote; none if its content does not match its name."""
    content = files.read(uri.child(path))
    digest = hashlib.sha256(content).hexdigest()
    if not path.endswith(f"-{digest[: manifest.DIGEST_LENGTH]}.parquet"):
        return None
    rows = open_parquet(pa.BufferReader(content)).metadata.num_rows
    return File(path=path, split=split, size=len(content), rows=rows, sha256=digest)


def open_parquet(source: Path | BinaryIO | pa.NativeFile, **options: int) -> pq.ParquetFile:
    """Open any Parquet file, with page checksums verified; every one that is read is opened here.

    `options` are those of pyarrow. Raises `ValueError` if a column has, or nests, an Arrow extension type: once
    `ray.data` is imported, reading values of such a type may unpickle them and so run what the file says.
    """
    file = pq.ParquetFile(source, page_checksum_verification=True, **options)
    for field in file.schema_arrow:
        if name := extension_type(field):
            raise ValueError(f"column {field.name!r} has the extension type {name!r}: store it as a plain type")
    return file


def extension_type(field: pa.Field) -> str | None:
    """Return the name of the extension type that a column has or nests; none if there is none."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        return str(kind.extension_name)
    if name := (field.metadata or {}).get(b"ARROW:extension:name"):  # a type that is not registered in this process
        return str(name, errors="replace")
    nested = [kind.field(number) for number in range(kind.num_fields)]
    nested += [pa.field("", kind.value_type)] if pa.types.is_dictionary(kind) else []
    return next(filter(None, map(extension_type, nested)), None)


def read_part(
    uri: URI, file: File, *, columns: list[str] | None = None, schema: Mapping[str, str] | None = None
) -> pa.Table:
    """Read the table of one listed file; raises `manifest.Damaged` if its bytes are not those that were committed.

    Raises `ValueError` for an extension type, or other columns than `schema`: names and types, as in a manifest.
    """
    content = manifest.read_file(uri, file)
    try:
        part = open_parquet(pa.BufferReader(content))
        if schema is not None and (actual := describe(part.schema_arrow)["columns"]) != schema:
            raise ValueError(f"its columns are {actual} instead of {dict(schema)}")
    except ValueError as error:
        raise ValueError(f"{uri.child(file.path)}: {error}") from None
    return part.read(columns=columns)


def read_split(uri: URI, split: str | None = None, *, columns: list[str] | None = None) -> pa.Table:
    """Read all rows of one split (none: of all files) into memory, in the manifest's order."""
    committed = manifest.load(uri)
    if not (parts := committed.split(split)):
        raise ValueError(f"{uri} has no rows in split {split!r}")
    schema = None if split == "quarantine" else committed.columns.get("columns")
    return pa.concat_tables([read_part(uri, file, columns=columns, schema=schema) for file in parts])


def describe(schema: pa.Schema) -> dict[str, dict[str, str]]:
    """Convert `schema` to the form that a manifest stores: columns with their types, and metadata."""
    metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    return {"columns": {field.name: str(field.type) for field in schema}, "metadata": metadata}
