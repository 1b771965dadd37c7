"""Ray Train with fewer processes: its controller runs in the process that starts the training."""

import asyncio
import threading
from typing import Any

import ray
from ray.runtime_context import RuntimeContext
from ray.train import Result
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tasks.jobs.deadline import run_in_thread

_UNNEEDED = {"DatasetsCallback", "PlacementGroupCleanerCallback"}
"""Callbacks that start an actor each: workers read their rows themselves, and what a job held is free after its end."""


class LeanTrainer(DataParallelTrainer):
    """`TorchTrainer` that controls its workers from this process, and starts two actors fewer.

    Actors take seconds to start, the controller's before any worker does, and wake up a hundred times a second during
    the training. No fault tolerance is lost: a separate controller that dies also ends its job, the workers and what
    they held.
    """

    def _create_default_callbacks(self) -> list[object]:
        return [each for each in super()._create_default_callbacks() if type(each).__name__ not in _UNNEEDED]

    def _initialize_and_run_controller(self, **named: Any) -> Result:
        controller = Controller(**named)

        def control() -> Result:
            asyncio.run(controller.run())
            return controller.get_result()

        return run_in_thread(control, give_up=controller.given_up.set)


class Workers(WorkerGroup):
    """Ray Train's group of workers, in processes that a local Ray has ready and with a controller that is no actor."""

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: object) -> object:
        # Ray Train adds variables of this process, which workers of a local Ray have anyway. With a runtime environment
        # of its own, a worker would have to wait for a new process.
        return custom_runtime_env

    def _init_train_context_on_workers(self, *positional: object) -> None:
        real = ray.get_runtime_context
        ray.get_runtime_context = lambda: _NoActor(real())
        try:
            super()._init_train_context_on_workers(*positional)
        finally:
            ray.get_runtime_context = real


class _NoActor:
    """Ray's runtime context, but `current_actor` is None instead of an error: this process is no actor.

    Workers use the controller's handle only to ask for earlier checkpoints, which are found in storage here.
    """

    current_actor = None

    def __init__(self, real: RuntimeContext) -> None:
        self._real = real

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


class Controller(TrainController):
    """Ray Train's controller that stops before its next check of the workers once `given_up` is set."""

    worker_group_cls = Workers

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.given_up = threading.Event()

    async def _run_control_loop_iteration(self) -> None:
        if self.given_up.is_set():
            raise SystemExit
        await super()._run_control_loop_iteration()
