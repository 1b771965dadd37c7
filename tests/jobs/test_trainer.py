"""`LeanTrainer`: the thread of its controller, and what it starts for its workers."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig
from ray.train.v2._internal.execution.controller import TrainController

from tasks.jobs.backends.tuned import trainer
from tasks.jobs.backends.tuned.trainer import LeanTrainer
from tasks.jobs.deadline import DeadlineExceeded, deadline


def lean(*, workers: int, use_gpu: bool = False) -> LeanTrainer:
    return LeanTrainer(print, timeout_s=60, scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu))


@pytest.fixture
def controlled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], Any]:
    """Runs a trainer whose controller, at each look at its workers, does what it is given."""

    def run(look: Callable[[], None]) -> Any:
        class Looking(trainer.Controller):
            def __init__(self, **_: Any) -> None:
                self.given_up = threading.Event()

            async def run(self) -> None:
                while True:
                    await self._run_control_loop_iteration()

        async def iteration(_: Any) -> None:
            look()
            await asyncio.sleep(0.01)

        monkeypatch.setattr(TrainController, "_run_control_loop_iteration", iteration)
        monkeypatch.setattr(trainer, "Controller", Looking)
        return lean(workers=1)._initialize_and_run_controller()

    return run


def test_what_the_controller_raises_comes_out(controlled: Callable[[Callable[[], None]], Any]) -> None:
    def fail() -> None:
        raise RuntimeError("no place for the workers")

    with pytest.raises(RuntimeError, match="^no place for the workers$"):
        controlled(fail)


def test_a_deadline_ends_the_controller_with_it(controlled: Callable[[Callable[[], None]], Any]) -> None:
    before = set(threading.enumerate())
    with pytest.raises(DeadlineExceeded), deadline(0.2):
        controlled(lambda: None)
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize(
    ("workers", "use_gpu", "has_group"), [(1, False, False), (1, True, True), (2, False, True)], ids=str
)
def test_a_single_worker_on_cpus_gets_no_process_group(workers: int, use_gpu: bool, has_group: bool) -> None:
    config = lean(workers=workers, use_gpu=use_gpu).backend_config
    assert isinstance(config, TorchConfig) == has_group
