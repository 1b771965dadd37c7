"""The controller of a training, in a thread next to the one that waits for it."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from ray.train.v2._internal.execution.controller import TrainController

from tasks.jobs.backends.tuned import trainer
from tasks.jobs.backends.tuned.trainer import LeanTrainer
from tasks.jobs.deadline import DeadlineExceeded, deadline


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
        return LeanTrainer(print)._initialize_and_run_controller()

    return run


def test_what_the_controller_raises_comes_out(controlled: Callable[[Callable[[], None]], Any]) -> None:
    def fail() -> None:
        raise RuntimeError("no place for the workers")

    with pytest.raises(RuntimeError, match="^no place for the workers$"):
        controlled(fail)


def test_a_deadline_ends_the_controller_with_it(controlled: Callable[[Callable[[], None]], Any]) -> None:
    before = threading.active_count()
    with pytest.raises(DeadlineExceeded), deadline(0.2):
        controlled(lambda: None)
    assert threading.active_count() == before
