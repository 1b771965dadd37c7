"""Nothing from storage, a download or Prefect is ever unpickled, and no text is executed."""

import ast
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
from storage.uri import DatasetURI, Root
from tasks.jobs import row_origins
from tasks.jobs.ingest import parquet_reader
from tests.faults.kinds.stored import Payload
from tests.test_imports import MODULES, ROOT

_PICKLES = {"pickle", "cloudpickle", "joblib", "dill", "shelve", "marshal"}
_RUN_TEXT = {"eval", "exec", "read_pickle", "to_pickle"}
_ALLOWED = {
    "tasks/exporting/formats.py": ["torch.export.load(io.BytesIO(content))"],
}
"""An export that this process has just written."""
_SAFE_LOADERS = {"SafeLoader", "CSafeLoader"}
_OPENS_PARQUET = {"ParquetFile", "ParquetDataset", "read_table", "read_schema", "read_metadata", "read_parquet"}
_ONLY_PLACE = "storage/tables.py"
"""The one file that opens Parquet, and refuses extension types."""


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
    value = pickled(marker)
    return {
        "plain": value,
        "struct": pa.StructArray.from_arrays([value], ["x"]),
        "list": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), value),
        "map": pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["x"]), value),
        "deep": pa.StructArray.from_arrays([pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), value)], ["x"]),
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
            lambda content=content: parquet_reader.opened(io.BytesIO(content)),
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
    usual = {field.name: pa.nulls(1, field.type) for field in row_origins.SCHEMA}
    for name, value, message in (("x", pickled(marker), "extension type"), ("path", pa.array([1]), "its columns are")):
        file = commits.write_file(uri, "sources.parquet", encoded({**usual, name: value}))
        made = commits.commit(uri, kind="raw", parents={}, parameters={"ingest": 1}, listed=[file])
        with pytest.raises(ValueError, match=message):
            row_origins.table(uri, made)
        Path(uri.child(manifest.NAME)).unlink()


def test_no_module_unpickles_anything() -> None:
    found = {}
    for path in MODULES:
        name = str(path.relative_to(ROOT))
        found[name] = [line.partition(": ")[2] for line in _unsafe(path.read_text(), opens_parquet=name == _ONLY_PLACE)]
    assert {name: lines for name, lines in found.items() if lines} == _ALLOWED


UNSAFE = """
from dill import loads
from ray import cloudpickle
torch.load(path, weights_only=False)
np.load(path, allow_pickle=True)
yaml.load(text, Loader=yaml.Loader)
eval(text)
builtins.exec(text)
pd.read_pickle(path)
pq.read_table(path)
pa.ipc.open_stream(path)
from pyarrow.parquet import ParquetFile
import pyarrow.dataset
ray.data.read_numpy(path)
torch.export.load(path)
"""
SAFE = """
torch.load(path, weights_only=True)
np.load(path, allow_pickle=False)
yaml.load(text, Loader=yaml.SafeLoader)
model.eval()
ray.data.read_datasource(source)
"""


def test_unsafe_lines_are_noticed_and_no_others() -> None:
    lines = enumerate(UNSAFE.splitlines()[1:], start=2)
    assert {*_unsafe(UNSAFE)} == {f"line {number}: {line}" for number, line in lines}
    assert list(_unsafe(SAFE)) == []


def test_results_in_prefect_are_json() -> None:
    found = [one for name in _with_prefect() for one in vars(importlib.import_module(name)).values()]
    flows = {one.name: one for one in found if isinstance(one, Flow)}
    tasks = {one.name: one for one in found if isinstance(one, Task)}
    assert flows.keys() == {"mnist", "fashion-mnist", "cifar10", "images", "predict"}
    stages = {"download", "ingest", "preprocess", "train", "predict", "evaluate", "promote", "report"}
    assert tasks.keys() == stages | {"export", "audit"}
    assert {one.result_serializer for one in flows.values()} == {"json"}
    assert {(one.result_serializer, one.persist_result) for one in tasks.values()} == {("json", False)}


def _with_prefect() -> Iterator[str]:
    """Dotted names of the modules that hold flows and tasks."""
    for path in MODULES:
        if any(line.startswith(("@flow", "@task")) for line in path.read_text().splitlines()):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _unsafe(source: str, *, opens_parquet: bool = False) -> Iterator[str]:
    """The lines that unpickle, run a text, or read a file that may hold pickles without refusing them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call):
            names = {"pickle"} if _is_unsafe_call(node, opens_parquet=opens_parquet) else set()
        else:
            continue
        if any(_is_unsafe_import(name) for name in names):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def _is_unsafe_import(name: str) -> bool:
    if name == "pickle.UnpicklingError":  # an error to catch
        return False
    parts = name.split(".")
    is_other_format = parts[0] == "pyarrow" and not {*parts[1:2]} <= {"parquet", "compute", "fs"}
    return bool({*parts} & {*_PICKLES, *_OPENS_PARQUET}) or is_other_format


def _is_unsafe_call(call: ast.Call, *, opens_parquet: bool) -> bool:
    dotted = ast.unparse(call.func)
    module, _, verb = dotted.rpartition(".")
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if module.partition(".")[0] == "torch" and verb in ("load", "PackageImporter"):
        return dotted != "torch.load" or given.get("weights_only") != "True"
    if module == "yaml" and verb.endswith("load"):
        return verb != "safe_load" and given.get("Loader", "").rpartition(".")[2] not in _SAFE_LOADERS
    if module == "ray.data" and verb.startswith("read_"):
        return verb != "read_datasource"
    if verb in _OPENS_PARQUET or ".ipc." in dotted:
        return not opens_parquet
    # A model's own `eval` only puts it in another mode.
    runs_text = verb in _RUN_TEXT and (verb not in ("eval", "exec") or module in ("", "builtins"))
    return runs_text or given.get("allow_pickle", "False") != "False"
