"""Steps run as a recipe and the hardware allow, with equal results, and batches of validation fit.

Real graphs need a GPU (`tests/gpu`).
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from storage.statistics import EpochMetrics, ModelSpec
from tasks.jobs.train import choices
from tasks.learning import recipes, step
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Trainer
from tasks.learning.modeling import Classifier
from tasks.learning.sources import Split
from tests.learning import training
from tests.learning.training import CPU, computed, same, small, weights

pytestmark = pytest.mark.usefixtures("one_thread", "more_models")
CUDA = {"device": "cuda"}
OWN = f"{Path(__file__).parents[2]}/examples/cifar10_airbench.py:cifar10_airbench"


@pytest.mark.parametrize(
    ("changes", "where", "expected"),
    [
        ({}, {"device": "cuda"}, ["graph", "eager"]),
        ({}, {"device": "cuda", "compiles": True}, ["compiled graph", "graph", "eager"]),
        ({"compile": "on"}, {"device": "cuda"}, ["compiled graph", "compiled"]),
        ({"compile": "on"}, {"device": "cuda", "world_size": 2}, ["compiled"]),
        ({"step": "eager"}, {"device": "cuda"}, ["eager"]),
        ({"micro_batches": 2}, {"device": "cuda"}, ["eager"]),
        ({}, {"device": "cuda", "world_size": 2}, ["eager"]),
        (CUDA | {"step": "graph"}, {"device": "cuda"}, ["graph"]),
        (CUDA | {"step": "graph", "compile": "on"}, {"device": "cuda"}, ["compiled graph"]),
        ({}, {"device": "cpu"}, ["eager"]),
        ({"compile": "on"}, {"device": "cpu"}, ["compiled"]),
    ],
)
def test_step_is_captured_on_a_gpu_and_compiled_if_that_was_chosen(
    changes: dict[str, Any], where: dict[str, Any], expected: list[str]
) -> None:
    assert step.launches(training.recipe(**changes), **{"world_size": 1, "compiles": False} | where) == expected


@pytest.mark.parametrize("name", recipes.known())
def test_recipes_of_the_project_are_captured_with_rows_in_memory_and_one_worker(name: str) -> None:
    recipe = recipes.load(name)
    if recipe.training.kind == "finetune":
        assert choices.why_eager(recipe, workers=1, loader="resident") == ""
        assert choices.why_eager(recipe, workers=2, loader="streaming") == "2 workers and loader=streaming"


def test_model_of_ones_own_is_captured_only_if_the_recipe_says_so() -> None:
    recipe = recipes.load(OWN)
    assert choices.why_eager(recipe, workers=1, loader="resident") == (
        "a model of your own (step=graph if it does the same in every step)"
    )
    graph = recipes.override(recipe, {"step": "graph"})
    assert choices.why_eager(graph, workers=1, loader="resident") == ""


@pytest.mark.parametrize(
    ("epoch_s", "launches", "changes", "expected"),
    [
        ([9, 3, 3], ["graph"] * 3, {}, True),
        ([9, 2, 2], ["graph"] * 3, {}, False),
        ([9], ["graph"], {}, False),
        ([9, 9, 1], ["graph"] * 3, {}, False),
        ([9, 3, 3], ["eager"] * 3, {}, False),
        ([3, 3, 1], ["graph", "graph", "compiled graph"], {}, True),
        ([9, 3, 3], ["graph"] * 3, {"compile": "off"}, False),
    ],
)
def test_compiling_pays_if_the_epochs_that_are_left_take_long(
    epoch_s: list[float], launches: list[str], changes: dict[str, Any], expected: bool
) -> None:
    recipe = training.recipe(epochs=20, **changes)
    names = ("step", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
    others = dict.fromkeys((*names, "learning_rate", "backbone_learning_rate"), 0)
    epochs = zip(epoch_s, launches, strict=True)
    history = [
        EpochMetrics(epoch=number, train_s=seconds + 100, data_wait_s=100, launch=launch, **others)
        for number, (seconds, launch) in enumerate(epochs, start=1)
    ]
    assert choices.compiling_pays(recipe, history, precision="bf16") is expected
    assert not choices.compiling_pays(recipe, history, precision="fp32")
    assert not choices.compiling_pays(recipe, [], precision="bf16")


def stand_in(forward: nn.Module, inputs: tuple[torch.Tensor], **how: Any) -> None:
    """Warm up as `torch.cuda.make_graphed_callables` does, and replace the forward pass, as it does."""
    usual = forward.forward
    for _ in range(3):
        outputs = forward(*inputs)
        torch.autograd.grad(outputs.sum(), [weight for weight in forward.parameters() if weight.requires_grad])
    forward.forward = lambda images: usual(images)


def failing(forward: nn.Module, inputs: tuple[torch.Tensor], **how: Any) -> None:
    """Fail after warming up, as with a model that waits for the GPU."""
    stand_in(forward, inputs, **how)
    raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors ...")


@pytest.mark.parametrize("capture", [stand_in, failing])
@pytest.mark.parametrize("compiles", [False, True])
def test_step_of_auto_computes_what_the_eager_one_does_whether_it_can_be_captured_or_not(
    digits: dict[str, Split], monkeypatch: pytest.MonkeyPatch, capture: Any, compiles: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    settings: dict[str, Any] = {"model": "unsteady"}
    eager, auto = small(digits, **settings, step="eager"), small(digits, **settings)
    if compiles:
        auto.compile_step()
    auto.step.launches = step.launches(auto.recipe, device="cuda", world_size=1, compiles=compiles)
    said = list[str]()
    auto.step.say = said.append
    launched = [auto.run_epoch(epoch) for epoch in (1, 2)]
    assert list(map(computed, launched)) == [computed(eager.run_epoch(epoch)) for epoch in (1, 2)]
    assert same(weights(auto), weights(eager))
    if capture is stand_in:
        assert {epoch.launch for epoch in launched} == {"compiled graph" if compiles else "graph"} and said == []
    else:
        assert {epoch.launch for epoch in launched} == {"eager"}
        assert said[-1] == (
            "steps are eager instead of graph for model unsteady, which cannot be captured (RuntimeError: "
            "operation not permitted when stream is capturing)"
        )
        assert len(said) == 1 + compiles


def test_step_that_must_be_a_graph_is_captured_for_each_set_of_weights_or_refused(
    digits: dict[str, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"model": "small-cnn", "start": "pretrained", "freeze_epochs": 1}
    eager = small(digits, **settings)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", stand_in)
    graph = small(digits, **settings, **CUDA, step="graph")
    for epoch in (1, 2):
        assert computed(graph.run_epoch(epoch)) == computed(eager.run_epoch(epoch)) and graph.step.launch == "graph"
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", failing)
    with pytest.raises(ValueError, match="^step must be auto or eager for model small-cnn, which cannot be captured"):
        small(digits, **settings, **CUDA, step="graph").run_epoch(1)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", out_of_memory)
    auto = small(digits, **settings)
    auto.step.launches = ["graph", "eager"]
    with pytest.raises(torch.OutOfMemoryError):
        auto.run_epoch(2)


def out_of_memory(*_: Any, **how: Any) -> None:
    """Fail as on a GPU that is full."""
    raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.slow
def test_compiled_step_agrees_with_the_eager_one_and_leaves_its_code_in_the_users_cache(
    digits: dict[str, Split], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # what is set later is undone at the end
    monkeypatch.setenv("HOME", str(tmp_path))
    step.keep_compiled_code()
    compiled = small(digits, compile="on").run_epoch(1)
    assert computed(compiled) == pytest.approx(computed(small(digits).run_epoch(1)), rel=1e-3)
    assert list((tmp_path / ".cache/data-to-model/compiled").rglob("*.so"))
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", stand_in)
    graph = small(digits, compile="on", step="graph", device="cuda").run_epoch(1)
    assert graph.launch == "compiled graph" and computed(graph) == computed(compiled)


@pytest.mark.parametrize(("changes", "expected"), [({"micro_batches": 4}, 512), ({"validation_batch_size": 7}, 7)])
def test_batch_of_validation_is_as_large_as_the_recipe_says(
    digits: dict[str, Split], changes: dict[str, Any], expected: int
) -> None:
    trainer, sizes = small(digits, **changes), list[int]()
    trainer.model.register_forward_pre_hook(
        lambda model, inputs: None if model.training else sizes.append(len(inputs[0]))
    )
    trainer.run_epoch(1)
    assert max(sizes) == min(expected, 32) and trainer.validation_batch_size == expected


def test_batch_of_large_images_is_smaller_and_a_rank_without_rows_computes_nothing() -> None:
    shape, recipe = (1024, 1024, 3), training.recipe(model="small", batch_size=1)
    row = torch.zeros(1, *shape, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    loader = ResidentLoader(row, (row[0][:0], row[1][:0]), seed=0, rank=0, device=CPU)
    spec = ModelSpec(model="small", image_shape=shape, classes=("a", "b"), mean=(0.0,) * 3, std=(1.0,) * 3)
    assert Trainer(recipe, Classifier(spec), loader, precision="fp32", device=CPU).validation_batch_size == 42
    assert list(loader.validation_batches(batch_size=512)) == []
