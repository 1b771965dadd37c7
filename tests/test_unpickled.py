"""Nothing from storage, a download or Prefect is ever unpickled; ruff bans the calls that would (pyproject.toml)."""

import importlib
import io
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect import Flow, Task
from ray.data.extensions import ArrowPythonObjectType

from storage import commits, manifest, tables
from storage.kinds import DatasetURI
from storage.uri import Root
from tasks.images import parquet_files, row_tables
from tests import committed
from tests.faults.kinds.stored import Payload
from tests.runs import CHECKOUT

MODULES = [path for top in ("flows", "tasks", "storage") for path in (CHECKOUT / top).rglob("*.py")]


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """A file that must not be there after the test."""
    yield tmp_path / "executed"
    assert not (tmp_path / "executed").exists()


def pickled(marker: Path) -> pa.Array:
    """A value of the extension type that `ray.data` registers in every process which imports it."""
    stored = pa.array([pickle.dumps(Payload(marker))], pa.large_binary())
    return pa.ExtensionArray.from_storage(ArrowPythonObjectType(), stored)


def in_columns(marker: Path) -> dict[str, pa.Array]:
    """The value as a column, and nested in columns of other types."""
    value, offsets = pickled(marker), pa.array([0, 1], pa.int32())
    return {
        "plain": value,
        "struct": pa.StructArray.from_arrays([value], ["x"]),
        "map": pa.MapArray.from_arrays(offsets, pa.array(["x"]), value),
        "deep": pa.StructArray.from_arrays([pa.ListArray.from_arrays(offsets, value)], ["x"]),
    }


def encoded(columns: dict[str, pa.Array]) -> bytes:
    """The columns as Parquet."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def test_payload_would_run_without_the_refusal(tmp_path: Path) -> None:
    pq.read_table(io.BytesIO(encoded({"x": pickled(tmp_path / "executed")}))).to_pandas()
    assert (tmp_path / "executed").exists()


def test_parquet_with_an_extension_type_is_refused_before_a_value_is_read(tmp_path: Path, marker: Path) -> None:
    uri = DatasetURI(Root(str(tmp_path)).child("datasets/raw/photos-0123456789ab"))
    images = {"image": pa.array([b"..."], pa.binary()), "label": pa.array([0])}
    for name, column in in_columns(marker).items():
        content = encoded({**images, name: column})
        file = commits.write_file(uri, f"train/{name}.parquet", content, split="train", rows=1)
        for read in (
            lambda content=content: parquet_files.opened(io.BytesIO(content)),
            lambda file=file: tables.read_part(uri, file).to_pandas(),
            lambda file=file: tables.read_part(uri, file, columns=["label"]),
        ):
            with pytest.raises(ValueError, match=f"column '{name}' has the extension type 'ray.data.arrow_pickled"):
                read()


def test_extension_type_that_is_not_registered_or_a_dictionary_of_one_is_refused() -> None:
    unregistered = pa.field("x", pa.binary(), metadata={"ARROW:extension:name": "ray.data.arrow_pickled_object"})
    for field in (unregistered, pa.field("x", pa.dictionary(pa.int32(), ArrowPythonObjectType()))):
        assert tables.extension_type(field) == "ray.data.arrow_pickled_object"


def test_table_of_sources_with_another_schema_is_refused(tmp_path: Path, marker: Path) -> None:
    uri = DatasetURI(Root(str(tmp_path)).child("datasets/raw/photos-0123456789ab"))
    usual = {field.name: pa.nulls(1, field.type) for field in row_tables.SCHEMA}
    for name, value, message in (("x", pickled(marker), "extension type"), ("path", pa.array([1]), "its columns are")):
        file = commits.write_file(uri, "sources.parquet", encoded({**usual, name: value}))
        made = committed.commit(uri, "raw", [file], parameters={"ingest": 1})
        with pytest.raises(ValueError, match=message):
            row_tables.table(uri, made)
        Path(uri.child(manifest.NAME)).unlink()


def test_no_loader_is_told_to_unpickle() -> None:
    unsafe = ("weights_only=False", "allow_pickle=True")  # options, which ruff does not look at
    assert [(path.name, word) for path in MODULES for word in unsafe if word in path.read_text()] == []


def test_results_in_prefect_are_json() -> None:
    for path in MODULES:
        if any(line.startswith(("@flow", "@task")) for line in path.read_text().splitlines()):
            module = importlib.import_module(".".join(path.relative_to(CHECKOUT).with_suffix("").parts))
            for value in vars(module).values():
                if isinstance(value, Flow | Task):
                    assert value.result_serializer == "json", value.name
                if isinstance(value, Task):
                    assert value.persist_result is False, value.name
