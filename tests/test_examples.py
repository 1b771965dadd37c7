"""Examples: each is a recipe in a file of its own, as a user would write it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from storage.statistics import ModelSpec
from tasks.learning import models, recipes, training_state
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Batch, Trainer, seed_everything
from tasks.learning.modeling import Classifier
from tasks.learning.recipes import Recipe
from tests.learning.training import CPU, same, weights
from tests.runs import CHECKOUT

RECIPES = {"cifar10_airbench.py": "cifar10_airbench"}
"""The recipe of each file."""


def load(file: str = "cifar10_airbench.py") -> Recipe:
    """The recipe of an example."""
    return recipes.load(f"{CHECKOUT}/examples/{file}:{RECIPES[file]}")


def test_every_example_is_here() -> None:
    assert {path.name for path in Path(CHECKOUT, "examples").glob("*.py")} == RECIPES.keys()


class TestAirbench:
    @pytest.fixture
    def model(self) -> Any:
        """A new model, of the same seed each time."""
        seed_everything(0)
        return models.build(load().model, image_shape=(32, 32, 3), num_classes=10)

    @pytest.fixture
    def colours(self) -> tuple[Batch, Batch]:
        """Training and validation rows of four classes, each with a tint of its own: 17 x 17 pixels."""
        generator = torch.Generator().manual_seed(0)
        tints = torch.tensor([[150, 60, 60], [60, 150, 60], [60, 60, 150], [120, 120, 120]])

        def some(number: int) -> Batch:
            labels = torch.arange(number) % len(tints)
            coarse = torch.randint(-60, 61, (number, 3, 6, 6), generator=generator).float()
            pixels = nn.functional.interpolate(coarse, size=17, mode="bilinear") + tints[labels][:, :, None, None]
            return pixels.clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous(), labels

        return some(128), some(64)

    @staticmethod
    def trainer(colours: tuple[Batch, Batch]) -> Trainer:
        """A short run of the recipe in fp32, before its first step."""
        small = {"batch_size": 32, "epochs": 2, "precision": "fp32", "device": "cpu"}
        recipe = recipes.override(load(), small)
        seed_everything(recipe.finetuning.seed)
        mean, std = (90.0,) * 3, (50.0,) * 3
        spec = ModelSpec(model=recipe.model, image_shape=(17, 17, 3), classes=tuple("abcd"), mean=mean, std=std)
        model = Classifier(spec)
        loader = ResidentLoader(*colours, seed=recipe.finetuning.seed, rank=0, device=CPU)
        training_state.initialize_from_rows(model, loader)
        return Trainer(recipe, model, loader, precision="fp32", device=CPU)

    def test_it_learns_with_a_whitening_that_stays(self, colours: tuple[Batch, Batch]) -> None:
        trainer, again = self.trainer(colours), self.trainer(colours)
        for group in trainer.optimizer.param_groups:  # that of 1,024 rows is too high for batches of 32
            group["lr"] /= 32
        trainer.scheduler.base_lrs = [rate / 32 for rate in trainer.scheduler.base_lrs]
        assert same(weights(trainer), weights(again))
        whitening = trainer.model.backbone.get_parameter("whitening.weight").clone()
        metrics = [trainer.run_epoch(epoch) for epoch in (1, 2)]
        assert metrics[-1].validation_accuracy > 0.75, "a guess is right in one of four"
        assert torch.equal(trainer.model.backbone.get_parameter("whitening.weight"), whitening)

    def test_first_layer_whitens_the_patches_of_the_images_it_is_given(self, model: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        coarse = torch.randn(64, 3, 8, 8, generator=generator)  # neighbouring pixels are alike, as in photographs
        images = nn.functional.interpolate(coarse, size=32, mode="bilinear")
        model.initialize_from(images)
        whitened = model.get_submodule("whitening")(images).detach()
        half = whitened.shape[1] // 2
        assert torch.equal(whitened[:, half:], -whitened[:, :half])
        rows = whitened[:, :half].transpose(0, 1).flatten(1)
        power = (rows @ rows.T / rows.shape[1]).diagonal()
        shares = rows @ rows.T / rows.shape[1] / (power[:, None] * power[None, :]).sqrt()
        torch.testing.assert_close(shares, torch.eye(half), rtol=0, atol=1e-3)
        assert power.max() <= 1.001 and (power > 0.5).sum() >= 3

    def test_images_that_are_too_small_are_refused(self) -> None:
        with pytest.raises(ValueError, match="airbench94 requires images of at least 17 x 17 pixels, got 16 x 40"):
            models.build(load().model, image_shape=(16, 40, 3), num_classes=10)
