"""Jobs by Ray in processes of their own."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from typing import Any

import torch

from storage.uri import DatasetURI, Root
from tasks.jobs.events import ERROR
from tasks.jobs.spec import JobSpec
from tasks.resources.needs import Limits, needs_of
from tasks.runners.jobs_api import JOB_ENV
from tasks.stages import Train
from tests.jobs import raw
from tests.runs import CHECKOUT

LIMIT_S = 480
"""Seconds after which a job that still runs is ended; longer ones wait for what will not come."""
_RAY = {**JOB_ENV, "RAY_ADDRESS": "local", "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
"""A job's environment and a Ray of its own: without an address it would join the last one that this machine had."""


def to_train(root: Root, prepared: DatasetURI, device: torch.device, *, name: str, **changes: Any) -> Train:
    """The job that trains a small model on `device`, by Ray with one worker."""
    usual = {"model": "small-cnn", "epochs": 2, "batch_size": 64, "device": device.type}
    rows = DatasetURI(root.child(f"datasets/prepared/{prepared.name}"))
    spec = raw.to_train(root, rows, name=name, **usual | changes)
    return spec.model_copy(update={"workers": 1})


class Job:
    """A job that has ended, by itself or after `LIMIT_S`: its exit code, and what it has printed."""

    def __init__(self, stage: Train, **env: str) -> None:
        needs = needs_of(stage.recipe, stage.workers)
        file = JobSpec(stage=stage, limits=Limits(stage_s=LIMIT_S), needs=needs, threads=1).write()
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        own = {"PYTHONPATH": str(CHECKOUT), "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        with subprocess.Popen(
            [sys.executable, "-m", "tasks.jobs", "train", file],
            env=plain | _RAY | own | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                self.output, _ = process.communicate(timeout=LIMIT_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
        self.exit_code = process.returncode

    @property
    def error(self) -> dict[str, Any]:
        """The error that ended it."""
        (line,) = [line for line in self.output.splitlines() if ERROR in line]
        error: dict[str, Any] = json.loads(line.partition(ERROR)[2])
        return error
