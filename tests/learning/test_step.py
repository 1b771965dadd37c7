"""Variants of the step agree with the plain one: graphs and compiled code."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.learning import loop, step
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Trainer
from tasks.learning.sources import Split
from tests.learning import training
from tests.learning.training import computed, same, weights

pytestmark = pytest.mark.usefixtures("one_thread", "small_model")


def small(digits: dict[str, Split], **changes: Any) -> Trainer:
    """A run of the small model on 64 digits, four steps an epoch."""
    recipe = training.recipe(**{"model": "small", "batch_size": 16, "flip": "horizontal"} | changes)
    train, validation = training.rows(digits["train"], 0, 64), training.rows(digits["test"], 0, 32)
    return training.trainer(recipe, train, validation)


def test_step_is_captured_once_for_each_set_of_weights_and_warming_up_leaves_no_trace(
    digits: dict[str, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[tuple[int, ...]] = []

    def capture(forward: torch.nn.Module, inputs: tuple[torch.Tensor], **_: Any) -> None:
        captured.append(tuple(inputs[0].shape))
        for buffer in forward.buffers():
            buffer.add_(1)  # as batch normalization does

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: contextlib.nullcontext())
    settings: dict[str, Any] = {"model": "small-cnn", "start": "pretrained", "freeze_epochs": 1}
    eager, graphed = small(digits, **settings), small(digits, **settings, step="graph", device="cuda")
    for epoch in (1, 2):
        assert graphed.run_epoch(epoch) == eager.run_epoch(epoch)
    assert same(weights(graphed), weights(eager)) and captured == [(16, 28, 28, 1)] * 2


@pytest.mark.slow
def test_compiled_step_agrees_with_the_eager_one_and_leaves_its_code_in_the_users_cache(
    digits: dict[str, Split], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # what is set later is undone at the end
    monkeypatch.setenv("HOME", str(tmp_path))
    step.keep_compiled_code()
    found = small(digits, compile=True).run_epoch(1)
    assert computed(found) == pytest.approx(computed(small(digits).run_epoch(1)), rel=1e-3)
    assert list((tmp_path / ".cache/data-to-model/compiled").rglob("*.so"))


class TestValidation:
    @pytest.mark.parametrize(("changes", "expected"), [({"micro_batches": 4}, 512), ({"validation_batch_size": 7}, 7)])
    def test_batch_is_the_one_that_was_asked_for_and_smaller_for_large_images(
        self, digits: dict[str, Split], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], expected: int
    ) -> None:
        trainer, sizes = small(digits, **changes), list[int]()
        trainer.model.register_forward_pre_hook(
            lambda model, given: None if model.training else sizes.append(len(given[0]))
        )
        trainer.run_epoch(1)
        assert max(sizes) == min(expected, 32) and trainer.validation_batch_size == expected
        monkeypatch.setattr(loop, "_VALIDATION_BYTES", 28 * 28 * 5 + 1)
        assert small(digits).validation_batch_size == 5

    def test_rank_without_rows_computes_nothing(self, digits: dict[str, Split]) -> None:
        empty = training.rows(digits["test"], 0, 0)
        loader = ResidentLoader(empty, empty, seed=0, rank=0, device=torch.device("cpu"))
        assert list(loader.validation_batches(batch_size=512)) == []
