"""Trainings as jobs, one after the other, on the tests' own Ray, without Prefect."""

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage import manifest
from storage.uri import CheckpointURI, DatasetURI, Root
from tasks.jobs.spec import TrainSpec
from tasks.learning import recipes
from tasks.runners.jobs_api import JOB_ENV
from tasks.runners.local_ray import start_ray
from tests.faults import injection
from tests.faults.harness import raw_name, write_raw
from tests.faults.history import History
from tests.jobs import raw
from tests.prefect_system import free_port
from tests.runs import CHECKOUT

_LIMIT_S = 600


class Trainings:
    """A Ray, and rows to train on: 2,003 digits of the sample, prepared."""

    def __init__(self, folder: Path) -> None:
        self.root = Root(str(folder / "root"))
        self.history, self._once, self._log = History(folder / "history.jsonl"), folder / "once", folder / "log"
        write_raw(self.root)
        spec = raw.to_prepare(self.root, DatasetURI(self.root.child(f"datasets/raw/{raw_name()}")))
        raw.run(spec)
        self._prepared = spec.target
        port = free_port()
        self._env = os.environ | JOB_ENV | {"PYTHONPATH": str(CHECKOUT), "RAY_ADDRESS": f"127.0.0.1:{port}"}
        self._env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # A worker of the first training after `once` was removed is struck, in its third epoch: while that lasts, the
        # checkpoint of the first is whole.
        fault = {"point": "step", "at": "epoch 3", "rank": None, "skip": 5, "action": "kill", "once": str(self._once)}
        env = self._env | injection.environment(self.history.path, fault)
        self._ray = start_ray(env, port=port, has_dashboard=False)
        self._ray.wait()

    def run(
        self, name: str, *, loader: str, workers: int, kill: bool, **changed: Any
    ) -> tuple[CheckpointURI, list[dict[str, Any]]]:
        """Train for three epochs, or as `changed` says; with `kill`, a worker is killed in the third one.

        Returns:
            The checkpoint, and what happened: an event for each step of each worker, see `History`.
        """
        self._once.touch()
        if kill:
            self._once.unlink()
        self.history.begin(name=name)
        settings = {"model": "small-cnn", "precision": "fp32", "epochs": 3, "batch_size": 64, "loader": loader}
        settings |= changed
        spec = TrainSpec(
            storage=self.root,
            deadline_s=_LIMIT_S,
            threads=os.cpu_count(),
            source=self._prepared,
            target=CheckpointURI(self.root.child(f"checkpoints/{name}")),
            recipe=recipes.override(recipes.load("mnist-sample-resnet18"), settings),
            parameters={},
            workers=workers,
        )
        file = Path(self.root, f"{name}.json")
        file.write_text(spec.model_dump_json())
        command = [sys.executable, "-m", "tasks.jobs.train", str(file)]
        with self._log.open("wb") as log:
            done = subprocess.run(command, env=self._env, stdout=log, stderr=log, timeout=_LIMIT_S)
        assert done.returncode == 0, self._log.read_text()[-4000:]
        return spec.target, list(self.history.events())

    def end(self) -> None:
        """End the Ray."""
        self._ray.child.end()


@contextlib.contextmanager
def trainings(folder: Path) -> Iterator[Trainings]:
    """A Ray for as long as the block lasts."""
    made = Trainings(folder)
    try:
        yield made
    finally:
        made.end()


def weights(checkpoint: CheckpointURI) -> list[str]:
    """SHA-256 of the committed weights."""
    return [file.sha256 for file in manifest.load(checkpoint).files if file.path.startswith("weights")]
