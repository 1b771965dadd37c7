"""Jobs by Ray in processes of their own."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from storage.uri import DatasetURI, Root
from tasks.jobs.events import EPOCHS, ERROR, PROGRESS
from tasks.jobs.spec import JobSpec, TrainSpec
from tasks.runners.jobs_api import JOB_ENV
from tests.jobs import raw
from tests.runs import CHECKOUT, kill_process, processes_with

LIMIT_S = 480
"""Seconds after which a job that still runs is ended; longer ones wait for what will not come."""
_RAY = {**JOB_ENV, "RAY_ADDRESS": "local", "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
"""A job's environment and a Ray of its own: without an address it would join the last one that this machine had."""


def to_train(root: Root, prepared: DatasetURI, device: torch.device, *, name: str, **changes: Any) -> TrainSpec:
    """The job that trains a small model on `device`, by Ray with one worker."""
    usual = {"model": "small-cnn", "epochs": 2, "batch_size": 64, "device": device.type}
    rows = DatasetURI(root.child(f"datasets/prepared/{prepared.name}"))
    spec = raw.to_train(root, rows, name=name, **usual | changes)
    return spec.model_copy(update={"workers": 1, "threads": 1, "parameters": {}, "deadline_s": LIMIT_S})


class Job:
    """A job that runs, and what it has printed so far."""

    def __init__(self, spec: JobSpec, **env: str) -> None:
        file = Path(spec.storage, f"{spec.target.name}.json")
        file.write_text(spec.model_dump_json())
        module = "tasks.jobs.train" if isinstance(spec, TrainSpec) else "tasks.jobs.predict"
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.mark = uuid.uuid4().hex
        own = {"PYTHONPATH": str(CHECKOUT), "RAY_AUTH_TOKEN": secrets.token_hex(32), "GPU_JOB": self.mark}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(file)],
            env=plain | _RAY | own | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output = ""

    def lines(self) -> Iterator[str]:
        """What it prints from now on."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.output += line
            yield line

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        for _ in self.lines():
            pass
        return self.process.wait(LIMIT_S)

    def trained(self, epochs: int) -> None:
        """Return as soon as it has trained so many epochs."""
        for line in self.lines():
            progress = json.loads(line.partition(PROGRESS)[2]) if PROGRESS in line else {}
            if progress.get("what") == EPOCHS and progress["done"] >= epochs:
                return
        raise AssertionError(f"the job ended before:\n{self.output[-4000:]}")

    @property
    def error(self) -> dict[str, Any]:
        """The error that ended it."""
        (line,) = [line for line in self.output.splitlines() if ERROR in line]
        error: dict[str, Any] = json.loads(line.partition(ERROR)[2])
        return error

    def kill(self) -> None:
        """End it and the processes of its group, none of which can do anything about it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill_worker(self) -> None:
        """End the process that trains for Ray."""
        processes = processes_with(f"GPU_JOB={self.mark}")
        workers = [pid for pid, command in processes.items() if "RayTrainWorker" in command]
        assert workers, "no training worker runs"
        for pid in workers:
            kill_process(pid)


@contextlib.contextmanager
def running(spec: JobSpec, **env: str) -> Iterator[Job]:
    """A job that is over after the block, however the block ends, and after `LIMIT_S` at the latest."""
    job = Job(spec, **env)
    limit = threading.Timer(LIMIT_S, job.kill)
    limit.start()
    try:
        yield job
    finally:
        limit.cancel()
        job.kill()
        job.process.wait(LIMIT_S)
