"""Jobs in processes of their own; `python -m tests.gpu.jobs SPEC` is a training without Ray."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from storage.uri import DatasetURI, Root
from tasks.jobs import errors, events, main
from tasks.jobs.events import EPOCHS, ERROR, PROGRESS
from tasks.jobs.spec import JobSpec, TrainSpec
from tasks.runners.jobs_api import JOB_ENV
from tests.jobs import raw
from tests.runs import CHECKOUT

LIMIT_S = 480
"""Seconds after which a job that still runs is ended; longer ones wait for what will not come."""
_RAY = {**JOB_ENV, "RAY_ADDRESS": "local", "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
"""A job's environment and a Ray of its own: without an address it would join the last one that this machine had."""


def to_train(root: Root, prepared: DatasetURI, device: torch.device, *, name: str, **changes: Any) -> TrainSpec:
    """The job that trains a small model on `device`, by Ray with one worker."""
    usual = {"model": "small-cnn", "epochs": 2, "batch_size": 64, "device": device.type, "step": "auto"}
    spec = raw.to_train(
        root, DatasetURI(root.child(f"datasets/prepared/{prepared.name}")), name=name, **usual | changes
    )
    return spec.model_copy(update={"workers": 1, "threads": 1, "parameters": {}, "deadline_s": LIMIT_S})


class Job:
    """A job that runs, and what it has printed so far."""

    def __init__(self, spec: JobSpec, *, by_ray: bool, **env: str) -> None:
        file = Path(spec.storage, f"{spec.target.name}.json")
        file.write_text(spec.model_dump_json())
        stage = "train" if isinstance(spec, TrainSpec) else "predict"
        module = f"tasks.jobs.{stage}" if by_ray else "tests.gpu.jobs"
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(file)],
            env=plain | _RAY | {"PYTHONPATH": path, "RAY_AUTH_TOKEN": secrets.token_hex(32)} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output = list[str]()

    def lines(self) -> Iterator[str]:
        """What it prints from now on."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.output.append(line)
            yield line

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        for _ in self.lines():
            pass
        return self.process.wait(LIMIT_S)

    def trained(self, epochs: int) -> None:
        """Return as soon as it has trained so many epochs."""
        for line in self.lines():
            if PROGRESS in line:
                progress = json.loads(line.partition(PROGRESS)[2])
                if progress["what"] == EPOCHS and progress["done"] >= epochs:
                    return
        raise AssertionError(f"the job ended before:\n{self.told}")

    @property
    def error(self) -> dict[str, Any]:
        """The error that ended it."""
        (found,) = [json.loads(line.partition(ERROR)[2]) for line in self.output if ERROR in line]
        described: dict[str, Any] = found
        return described

    @property
    def told(self) -> str:
        """The end of its output."""
        return "".join(self.output)[-4000:]

    def kill(self) -> None:
        """End it and the processes of its group, none of which can do anything about it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill_worker(self) -> None:
        """End the process that trains for Ray."""
        trains = [pid for pid in _descendants(self.process.pid) if "RayTrainWorker" in _command(pid)]
        assert trains, "no training worker runs"
        for pid in trains:
            with contextlib.suppress(ProcessLookupError):  # Ray ends the others once one has died
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def running(job: Job) -> Iterator[Job]:
    """A job that is over after the block, however the block ends, and after `LIMIT_S` at the latest."""
    limit = threading.Timer(LIMIT_S, job.kill)
    limit.start()
    try:
        yield job
    finally:
        limit.cancel()
        job.kill()
        job.process.wait(LIMIT_S)


def _descendants(pid: int) -> Iterator[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        yield from more
        found |= more


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _main(file: str) -> None:
    spec = TrainSpec.model_validate_json(Path(file).read_text())
    try:
        main.run_here(spec, tell=lambda line: print(line, flush=True))
    except Exception as error:
        events.write_event(ERROR, **errors.described(error, folder=spec.scratch))
        raise SystemExit(1) from error


if __name__ == "__main__":
    _main(*sys.argv[1:])
