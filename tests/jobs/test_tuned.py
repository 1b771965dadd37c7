"""The pipeline without private names of Ray gives the same results."""

from functools import partial
from pathlib import Path

import pytest

from storage import manifest
from storage.uri import URI
from tests.runs import Run, await_that


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_pipeline_gives_the_same_bytes_with_the_public_interfaces_of_ray_alone(tmp_path: Path) -> None:
    arguments = ["--json", "--set", "model=small-cnn", "--set", "epochs=1"]
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
