"""A job run by hand, without Prefect, on a Ray of its own; and one whose spec was altered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.kinds import DatasetURI
from storage.uri import Root
from tasks.jobs import main
from tasks.jobs.events import ERROR
from tasks.jobs.spec import JobSpec
from tasks.stages import Preprocess
from tests.runs import CHECKOUT


@pytest.mark.slow
def test_a_job_run_by_hand_ends_plainly_and_leaves_no_token_that_others_can_read(tmp_path: Path) -> None:
    root = Root(f"{tmp_path}/root")
    missing = DatasetURI(root.child("datasets/raw/missing-0123456789ab"))
    spec = JobSpec(stage=Preprocess(raw=missing), threads=1)
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    job = subprocess.run(
        [sys.executable, "-m", "tasks.jobs", "preprocess", str(tmp_path / "spec.json")],
        cwd=CHECKOUT,
        env=env | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert job.returncode == 1
    assert f"{missing} is not committed" in job.stdout
    assert not (tmp_path / ".ray").exists()


def test_a_job_whose_spec_was_altered_in_scratch_refuses_it_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, elsewhere = Root(f"{tmp_path}/root"), Root(f"{tmp_path}/elsewhere")
    source = DatasetURI(root.child("datasets/raw/any-0123456789ab"))
    place = JobSpec(stage=Preprocess(raw=source), threads=1).write()
    altered = JobSpec(stage=Preprocess(root=elsewhere, raw=source), threads=1)
    Path(place).write_text(altered.model_dump_json())
    monkeypatch.setattr(sys, "argv", ["tasks.jobs", "preprocess", place])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 1 and not Path(elsewhere).exists()
    error = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(ERROR))
    assert f"{place} is not what the run wrote (SHA-256), so the job did nothing; run again" in error
    assert '"permanent": true' in error
