"""Ray Train with its controller in the process that asks for the training."""

import asyncio
import threading
from typing import Any

import ray
from ray.train import Result
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tasks.jobs.deadline import aside

_UNNEEDED = {"DatasetsCallback", "PlacementGroupCleanerCallback"}
"""Workers read their rows themselves; what a controller held is free once its job has ended."""


class LeanTrainer(DataParallelTrainer):
    """Controls its workers from this process, and starts no actor that nobody here has work for.

    `timeout_s` is for how long workers wait for each other in a collective. Each process more takes seconds to start,
    one after the other, and wakes up a hundred times a second beside the training. A controller that dies ends its job
    in either way, and with it the workers and what they held.
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
    """The process group that Ray Train's `TorchConfig` sets up, where there is anybody to talk to.

    One worker has nobody: neither it nor this process, which then needs no torch at all, waits for any set-up.
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
            from ray.train.torch import TorchConfig

            config = TorchConfig(timeout_s=backend_config.timeout_s)
            config.backend_cls().on_start(worker_group, config)

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        if len(worker_group) > 1:
            from ray.train.torch import TorchConfig

            TorchConfig().backend_cls().on_shutdown(worker_group, backend_config)


class _Alone:
    """In place of the actor by which workers wait for each other, where there is one worker."""

    @property
    def broadcast_from_rank_zero(self) -> "_Alone":
        return self

    def remote(self, *, data: Any, **_: Any) -> ray.ObjectRef:
        return ray.put(data)


class _Workers(WorkerGroup):
    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
        return custom_runtime_env  # Ray Train's variables are this process's: a worker with any of its own starts later

    def _init_train_context_on_workers(
        self, workers: list[Any], sync_actor: Any, train_context_args: dict[str, list[Any]]
    ) -> None:
        if len(workers) == 1:
            ray.kill(sync_actor)
            sync_actor = _Alone()
        ray.get(
            [
                worker.actor.init_train_context.remote(
                    train_run_context=self._train_run_context,
                    distributed_context=worker.distributed_context,
                    synchronization_actor=sync_actor,
                    storage_context=self._storage_context,
                    worker_callbacks=self._worker_callbacks_to_propagate,
                    controller_actor=None,  # which is asked for earlier checkpoints only: these are found in storage
                    **{name: values[index] for name, values in train_context_args.items()},
                )
                for index, worker in enumerate(workers)
            ]
        )
        self._decorate_worker_log_file_paths(workers)


class Controller(TrainController):
    """Ray Train's own, that stops between two looks at its workers once `given_up` is set."""

    worker_group_cls = _Workers

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.given_up = threading.Event()

    async def _run_control_loop_iteration(self) -> None:
        if self.given_up.is_set():
            raise SystemExit
        await super()._run_control_loop_iteration()
