"""Variants of the step agree with the plain one: graphs, compiled code, snapshots."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from storage.uri import Root
from tasks.learning import loop, step, training_state
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Trainer
from tasks.learning.sources import Split
from tasks.learning.step import GraphedStep
from tests.learning import training
from tests.learning.training import computed, same, weights

pytestmark = pytest.mark.usefixtures("one_thread", "small_model")

FIELDS: dict[str, Any] = {"parameters": {}, "resolved": {}}


class Graph:
    """Stands in for `torch.cuda.CUDAGraph` on a CPU: a replay does the captured work again, into the same tensors."""

    def __init__(self, trainer: Trainer) -> None:
        assert isinstance(trainer.run_step, GraphedStep)
        self.graphed, self.step, self.replays, self.resets = trainer.run_step, trainer.step, 0, 0
        self.stream = "main"

    @contextlib.contextmanager
    def capture(self, *graph: Any, **how: Any) -> Iterator[None]:
        """Leave no trace in the totals: a capture computes nothing. Its end fails if the step has, like a GPU's."""
        before = self.step.totals.clone()
        self.stream = "capture"
        try:
            yield
        except Exception as error:
            self.step.totals.copy_(before)
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise torch.AcceleratorError("operation failed due to a previous error during capture") from None
        self.step.totals.copy_(before)
        self.stream = "main"

    def reset(self) -> None:
        """Give its memory back."""
        self.resets += 1

    def replay(self) -> None:
        self.replays += 1
        assert self.graphed._held is not None
        self.step.model.zero_grad()
        loss, gradients = self.graphed._made
        loss.copy_(self.step(*self.graphed._held))
        for weight, gradient in gradients:
            if gradient is not None and weight.grad is not None:
                gradient.copy_(weight.grad)
            weight.grad = None  # as the optimizer leaves it, which no graph changes


def small(digits: dict[str, Split], *, is_graphed: bool = False, **changes: Any) -> Trainer:
    """A run of the small model on 64 digits, four steps an epoch."""
    recipe = training.recipe(**{"model": "small", "batch_size": 16, "flip": "horizontal"} | changes)
    train, validation = training.rows(digits["train"], 0, 64), training.rows(digits["test"], 0, 32)
    return training.trainer(recipe, train, validation, is_graphed=is_graphed)


class TestGraphed:
    @pytest.mark.parametrize(
        "changes",
        [{"micro_batches": 3}, {"model": "drawing"}, {"class_weights": "balanced", "mixup": 0.2, "erasing": 0.5}],
        ids=["in pieces", "drawing", "weighted and mixed"],
    )
    def test_steps_through_fixed_memory_are_the_eager_ones_bit_by_bit(
        self, digits: dict[str, Split], changes: dict[str, Any]
    ) -> None:
        eager, static = small(digits, **changes), small(digits, is_graphed=True, **changes)
        for epoch in (1, 2):
            assert static.run_epoch(epoch) == eager.run_epoch(epoch)
        assert same(weights(static), weights(eager))

    def test_captured_step_is_replayed_after_three_that_are_not_with_the_same_results(
        self, digits: dict[str, Split], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        eager, graphed = small(digits), small(digits, is_graphed=True)
        graph = self.on_fake_gpu(graphed, monkeypatch)
        for epoch in (1, 2):
            assert graphed.run_epoch(epoch) == eager.run_epoch(epoch)
        assert same(weights(graphed), weights(eager))
        assert graph.graphed.graph and graph.replays == 8 - 3

    def test_model_that_draws_on_the_host_is_not_captured(
        self, digits: dict[str, Split], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        eager, graphed = small(digits, model="drawing"), small(digits, model="drawing", is_graphed=True)
        graph = self.on_fake_gpu(graphed, monkeypatch)
        for epoch in (1, 2):
            assert graphed.run_epoch(epoch) == eager.run_epoch(epoch)
        assert same(weights(graphed), weights(eager)) and graph.graphed.graph is None
        asked = small(digits, model="drawing", is_graphed=True, step="graph", device="cuda")
        self.on_fake_gpu(asked, monkeypatch)
        with pytest.raises(
            ValueError, match="step must be eager or auto for model drawing, which draws random numbers"
        ):
            asked.run_epoch(1)

    def test_failed_capture_is_followed_by_eager_steps_or_by_an_error_that_names_its_cause(
        self, digits: dict[str, Split], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(step: str, error: Exception) -> tuple[Trainer, Graph]:
            made = small(digits, is_graphed=True, step=step, device="cuda")
            graph = self.on_fake_gpu(made, monkeypatch)

            def fail(*_: Any) -> None:
                if graph.stream == "capture":
                    raise error

            made.model.backbone.register_forward_hook(fail)
            return made, graph

        eager, unsupported = small(digits), torch.AcceleratorError("CUDA error: operation not permitted\nCompile with")
        graphed, graph = failing("auto", unsupported)
        with pytest.warns(
            UserWarning, match=r"without a CUDA graph, .* \(AcceleratorError: CUDA error: operation not per"
        ):
            assert graphed.run_epoch(1) == eager.run_epoch(1)
        assert graphed.run_epoch(2) == eager.run_epoch(2), "it does not try again"
        assert same(weights(graphed), weights(eager))
        assert (graph.stream, graph.resets, graph.replays) == ("main", 1, 0)
        asked, _ = failing("graph", unsupported)
        with pytest.raises(
            ValueError, match=r"^step must be eager or auto .* \(AcceleratorError: CUDA error: operation not"
        ):
            asked.run_epoch(1)
        full, _ = failing("auto", torch.OutOfMemoryError("CUDA out of memory."))
        with pytest.raises(torch.OutOfMemoryError):
            full.run_epoch(1)

    @staticmethod
    def on_fake_gpu(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> Graph:
        """Let `trainer` take its CPU for a GPU that captures."""
        graph, stream = Graph(trainer), SimpleNamespace(wait_stream=lambda other: None)
        monkeypatch.setattr(graph.graphed, "_stream", stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda one: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
        monkeypatch.setattr(torch.cuda, "graph", graph.capture)
        monkeypatch.setattr(torch.cuda, "set_stream", lambda one: setattr(graph, "stream", "main"))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        return graph


@pytest.mark.slow
def test_compiled_step_agrees_with_the_eager_one_and_leaves_its_code_in_the_users_cache(
    digits: dict[str, Split], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with step.compiled_code(training.recipe(compile=True), root=Root(str(tmp_path / "root"))):
        found = small(digits, compile=True).run_epoch(1)
    assert computed(found) == pytest.approx(computed(small(digits).run_epoch(1)), rel=1e-3)
    folder = tmp_path / ".cache/data-to-model/compiled"
    assert list(folder.rglob("*.so")) and folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("fault", ["others may change it", "the root contains it", "it cannot be created"])
def test_code_is_kept_only_in_a_private_folder_outside_of_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, root = tmp_path / "cache/data-to-model/compiled", tmp_path / "root"
    if fault == "others may change it":
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    elif fault == "it cannot be created":
        (tmp_path / "cache").write_text("a file")
    else:
        root = tmp_path
    refused = pytest.raises(ValueError, match="compile=true needs .*/compiled as a folder of this user alone")
    with refused, step.compiled_code(training.recipe(compile=True), root=Root(str(root))):
        pass


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


def test_snapshot_does_not_change_with_later_steps(digits: dict[str, Split]) -> None:
    trainer, again = small(digits), small(digits)
    history = [trainer.run_epoch(1)]
    later = training_state.take(trainer, history, prepared="0", fields=FIELDS)
    trainer.run_epoch(2)
    at_once = training_state.take(again, [again.run_epoch(1)], prepared="0", fields=FIELDS).serialized()
    assert later.serialized() == at_once
