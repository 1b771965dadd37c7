"""Private names of other libraries are used in one folder only, each beside a public way to do the same."""

import ast
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from storage import manifest
from storage.uri import URI
from tests.runs import CHECKOUT, Run, await_that

FENCE = CHECKOUT / "tasks" / "jobs" / "backends" / "tuned"
OURS = ("flows", "tasks", "storage")
MODULES = sorted(path for top in OURS for path in (CHECKOUT / top).rglob("*.py") if not path.is_relative_to(FENCE))
DOCUMENTED = {"os._exit"}
"""Names that begin with an underscore and are public."""
OF_NAMED_TUPLES = {"_asdict", "_replace"}
"""Public methods of any `NamedTuple`."""
OVERRIDDEN = {
    "tasks/runners/jobs_api.py": {"super()._do_request"},  # never called by a Ray that does not have it
}
"""Private methods of other libraries that a class of ours overrides."""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_private_names_of_other_libraries_stay_inside_the_fence(path: Path) -> None:
    allowed = DOCUMENTED | OVERRIDDEN.get(str(path.relative_to(CHECKOUT)), set())
    names = {name for name in _private(path.read_text()) if name.rpartition(".")[2] not in OF_NAMED_TUPLES}
    assert names <= allowed


@pytest.mark.parametrize(
    "statement",
    [
        "from ray._private import services",
        "import ray.data._internal.stats",
        "from prefect.server.api import background_workers",
        "torch.cpu._is_avx2_supported()",
        "super()._step()",
        "getattr(client, '_do_request')",
        "setattr(stats._StatsManager, name, None)",
        "prefect.server.api.run()",
    ],
)
def test_a_private_name_is_noticed(statement: str) -> None:
    assert list(_private(statement))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_pipeline_gives_the_same_bytes_with_the_public_interfaces_of_ray_alone(tmp_path: Path) -> None:
    arguments = ["--mirror", "sample", "--json", "--set", "model=small-cnn", "--set", "epochs=1"]
    made = {}
    for tuned in ("1", "0"):
        (tmp_path / tuned).mkdir()
        storage = ["--storage", str(tmp_path / tuned / "root")]
        run = Run(*arguments, *storage, folder=tmp_path / tuned, env={"PIPELINE_TUNED": tuned})
        await_that(partial(_has_process, run, "gcs_server"))
        uris = run.result()["uris"]
        made[tuned] = [_digests(URI(uris[kind])) for kind in ("prepared", "checkpoint", "predictions")]
    assert made["0"] == made["1"]


def _has_process(run: Run, word: str) -> bool:
    return any(word in command for command in run.processes().values())


def _digests(uri: URI) -> set[str | None]:
    """Digests of what was computed; what a checkpoint says of its run beside the weights holds times."""
    files = manifest.load(uri).files
    return {file.sha256 for file in files if Path(file.path).suffix in (".parquet", ".safetensors")}


def _private(source: str) -> Iterator[str]:
    """Private names that `source` uses of anything but its own objects."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_private(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith(OURS):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in names if _is_private(name))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls"):
                yield f"{owner}.{node.attr}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("prefect.server"):
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and _is_private(str(name.value)):
                yield ast.unparse(node)


def _is_private(name: str) -> bool:
    return name.startswith("prefect.server") or any(
        part.startswith("_") and not part.startswith("__") for part in name.split(".")
    )
