"""Stalled and killed, processes contend for leases, commits and the registry: their history can be explained."""

from pathlib import Path

import pytest

from storage.uri import Root
from tests.concurrency import process_control
from tests.concurrency.__main__ import report, summary

SEED = 17
STEPS = {"local": 3000, "s3": 1000}
"""Most make two or three calls; more would take more than 90 seconds where two cores are busy with other work."""


@pytest.mark.slow
def test_history_of_contending_processes_can_be_explained(
    root: Root, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kind = "s3" if root.is_s3 else "local"
    server = request.getfixturevalue("s3") if root.is_s3 else None
    recording = process_control.run_workers(
        root, seed=SEED, operations=STEPS[kind], folder=tmp_path / "history", server=server
    )
    print(f"seed {SEED}: {summary(recording)}")
    problem = report(recording)
    assert not problem, f"seed {SEED}:\n{problem}"
    assert {"stalled", "killed"} <= set(recording.struck) and (kind == "local" or "lost" in recording.struck)
    assert len(recording.operations) > STEPS[kind]  # and the processes went on
