"""A job run by hand, without Prefect, on a Ray of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.uri import DatasetURI, Root
from tasks.jobs.spec import PreprocessSpec
from tests.runs import CHECKOUT


@pytest.mark.slow
def test_a_job_run_by_hand_ends_plainly_and_leaves_no_token_that_others_can_read(tmp_path: Path) -> None:
    root = Root(f"{tmp_path}/root")
    missing = DatasetURI(root.child("datasets/raw/missing-0123456789ab"))
    prepared = DatasetURI(root.child("datasets/prepared/model-0123456789ab"))
    spec = PreprocessSpec(storage=root, deadline_s=300, threads=1, source=missing, target=prepared, parameters={})
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    job = subprocess.run(
        [sys.executable, "-m", "tasks.jobs.preprocess", str(tmp_path / "spec.json")],
        cwd=CHECKOUT,
        env=env | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert job.returncode == 1
    assert f"{missing} is not committed" in job.stdout
    assert not (tmp_path / ".ray").exists()
