"""Ray Train with its controller in the process that starts the training."""

import asyncio
import threading
from typing import Any

import ray
from ray.runtime_context import RuntimeContext
from ray.train import Result
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup

from tasks.jobs.deadline import run_in_thread


class LeanTrainer(TorchTrainer):
    """`TorchTrainer` that controls its workers from this process instead of an actor of its own.

    The actor takes seconds to start, before any worker does, and wakes up a hundred times a second during the training.
    No fault tolerance is lost: a separate controller that dies also ends its job, the workers and what they held.
    """

    def _initialize_and_run_controller(self, **given: Any) -> Result:
        controller = Controller(**given)

        def control() -> Result:
            asyncio.run(controller.run())
            return controller.get_result()

        return run_in_thread(control, give_up=controller.given_up.set)


class _Workers(WorkerGroup):
    def _init_train_context_on_workers(self, *given: Any) -> None:
        real = ray.get_runtime_context
        ray.get_runtime_context = lambda: _NoActor(real())
        try:
            super()._init_train_context_on_workers(*given)
        finally:
            ray.get_runtime_context = real


class _NoActor:
    """Ray's runtime context, but `current_actor` is None instead of an error: this process is no actor.

    Workers use the controller's handle only to ask for earlier checkpoints, which are found in storage here.
    """

    current_actor = None

    def __init__(self, real: RuntimeContext) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Controller(TrainController):
    """Ray Train's controller that stops before its next check of the workers once `given_up` is set."""

    worker_group_cls = _Workers

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.given_up = threading.Event()

    async def _run_control_loop_iteration(self) -> None:
        if self.given_up.is_set():
            raise SystemExit
        await super()._run_control_loop_iteration()
