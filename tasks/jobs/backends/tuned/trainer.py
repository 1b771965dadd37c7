"""Ray Train with its controller in the process that starts the training, and with fewer processes."""

import asyncio
import threading
from typing import Any

import ray
from ray.runtime_context import RuntimeContext
from ray.train import Result
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tasks.jobs.deadline import aside

_UNNEEDED = {"DatasetsCallback", "PlacementGroupCleanerCallback"}
"""Callbacks to leave out: workers read their rows themselves, and a job's end frees what its controller held."""


class LeanTrainer(DataParallelTrainer):
    """Trainer that controls its workers from this process, and starts no actor without work in this project.

    `timeout_s` limits how long workers wait for each other in a collective. Ray Train's extra processes each take
    seconds to start, one after the other, and wake up a hundred times a second during the training. No
    fault tolerance is lost: a separate controller that dies also ends its job, the workers and what they held.
    """

    def __init__(self, *positional: Any, timeout_s: int = 1800, **named: Any) -> None:
        super().__init__(*positional, backend_config=_ProcessGroup(timeout_s=timeout_s), **named)

    def _initialize_and_run_controller(self, **given: Any) -> Result:
        controller = Controller(**given)

        def control() -> Result:
            asyncio.run(controller.run())
            return controller.get_result()

        return aside(control, give_up=controller.given_up.set)

    def _create_default_callbacks(self) -> list[Any]:
        return [each for each in super()._create_default_callbacks() if type(each).__name__ not in _UNNEEDED]


class _ProcessGroup(BackendConfig):
    """Ray Train's `TorchConfig`, but without a process group if there is only one worker.

    Then neither the worker nor this process waits for any set-up, and this process needs no torch.
    """

    def __init__(self, *, timeout_s: int) -> None:
        self.timeout_s = timeout_s

    @property
    def backend_cls(self) -> type[Backend]:
        return _Torch


class _Torch(Backend):
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        if len(worker_group) > 1:
            from tasks.jobs.train.checked_gpus import CheckedTorchConfig

            config = CheckedTorchConfig(timeout_s=backend_config.timeout_s)
            config.backend_cls().on_start(worker_group, config)

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        if len(worker_group) > 1:
            from ray.train.torch import TorchConfig

            TorchConfig().backend_cls().on_shutdown(worker_group, backend_config)


class _Alone:
    """Replacement of the actor by which workers wait for each other, if there is only one worker."""

    @property
    def broadcast_from_rank_zero(self) -> "_Alone":
        return self

    def remote(self, *, data: Any, **_: Any) -> ray.ObjectRef:
        return ray.put(data)


class _Workers(WorkerGroup):
    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
        return custom_runtime_env  # workers inherit Ray Train's variables; an environment of their own delays the start

    def _init_train_context_on_workers(self, workers: list[Any], sync_actor: Any, *given: Any) -> None:
        if len(workers) == 1:
            ray.kill(sync_actor)
            sync_actor = _Alone()
        real = ray.get_runtime_context
        ray.get_runtime_context = lambda: _NoActor(real())
        try:
            super()._init_train_context_on_workers(workers, sync_actor, *given)
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
