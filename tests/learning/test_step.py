"""Compiled code agrees with the plain step, and batches of validation fit; graphs need a GPU (`tests/gpu`)."""

from pathlib import Path
from typing import Any

import pytest
import torch

from storage.statistics import ModelSpec
from tasks.learning import step
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Trainer
from tasks.learning.modeling import Classifier
from tasks.learning.sources import Split
from tests.learning import training
from tests.learning.training import CPU, computed, small

pytestmark = pytest.mark.usefixtures("one_thread", "more_models")


@pytest.mark.slow
def test_compiled_step_agrees_with_the_eager_one_and_leaves_its_code_in_the_users_cache(
    digits: dict[str, Split], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # what is set later is undone at the end
    monkeypatch.setenv("HOME", str(tmp_path))
    step.keep_compiled_code()
    compiled = small(digits, compile=True).run_epoch(1)
    assert computed(compiled) == pytest.approx(computed(small(digits).run_epoch(1)), rel=1e-3)
    assert list((tmp_path / ".cache/data-to-model/compiled").rglob("*.so"))


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
