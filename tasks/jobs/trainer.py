"""Ray Train with its controller in the process that asks for the training."""

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import Any

import ray
from ray.train import Result
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup

_UNNEEDED = {"DatasetsCallback", "PlacementGroupCleanerCallback"}
"""Workers read their rows themselves; what a controller held is free once its job has ended."""
_GIVE_UP_S = 1.5
"""How long a controller that is given up may take: Ray kills a job three seconds after it told it to stop."""


class LeanTrainer(TorchTrainer):
    """Controls its workers from this process, and starts no actor that nobody here has work for.

    Each process more takes seconds to start, one after the other, and wakes up a hundred times a second beside the
    training. A controller that dies ends its job in either way, and with it the workers and what they held.
    """

    def _initialize_and_run_controller(self, **given: Any) -> Result:
        controller = Controller(**given)
        done: Future[Result] = Future()

        def control() -> None:
            try:
                asyncio.run(controller.run())
                done.set_result(controller.get_result())
            except BaseException as error:
                done.set_exception(error)

        # Deadlines and signals come to the main thread: there they end the job, and are not taken for a worker's fault.
        thread = threading.Thread(target=control, daemon=True)
        thread.start()
        try:
            return done.result()
        finally:
            controller.given_up.set()
            thread.join(_GIVE_UP_S)  # else it would go on asking a Ray that this process is leaving
            if thread.is_alive():  # in a call that blocks, and will fail: nobody's news after what ended the job
                logging.getLogger("ray.train").setLevel(logging.CRITICAL)

    def _create_default_callbacks(self) -> list[Any]:
        return [each for each in super()._create_default_callbacks() if type(each).__name__ not in _UNNEEDED]


class _Workers(WorkerGroup):
    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
        return custom_runtime_env  # Ray Train's variables are this process's: a worker with any of its own starts later

    def _init_train_context_on_workers(
        self, workers: list[Any], sync_actor: Any, train_context_args: dict[str, list[Any]]
    ) -> None:
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
