"""Models that compute the same as another one, or are initialised from training images."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tasks.learning import models, recipes, training_state
from tasks.learning.augmentation import flipped_in_turn
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Batch, Trainer, seed_everything
from tasks.learning.modeling import Classifier, ModelSpec
from tasks.learning.models.airbench94 import Airbench94
from tests.learning.training import CPU, same, weights

SHAPE = (32, 32, 3)


def built(name: str, **changes: object) -> nn.Module:
    """A new model, of the same seed each time."""
    seed_everything(0)
    return models.build(name, **{"image_shape": SHAPE, "num_classes": 10, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, nn.Module]:
    """torchvision's ViT and ours, each as its factory makes it."""
    return built("vit-patch4", image_shape=(16, 16, 3)), built("vit-patch4-sdpa", image_shape=(16, 16, 3))


@pytest.fixture(scope="module")
def rows() -> Batch:
    """Three rows for the transformers."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 3, 16, 16, generator=generator), torch.tensor([1, 5, 7])


@pytest.fixture(scope="module")
def colours() -> tuple[Batch, Batch]:
    """Training and validation rows of four classes, each with a tint of its own: 17 x 17 pixels."""
    generator = torch.Generator().manual_seed(0)
    tints = torch.tensor([[150, 60, 60], [60, 150, 60], [60, 60, 150], [120, 120, 120]])

    def some(number: int) -> Batch:
        labels = torch.arange(number) % len(tints)
        coarse = torch.randint(-60, 61, (number, 3, 6, 6), generator=generator).float()
        pixels = nn.functional.interpolate(coarse, size=17, mode="bilinear") + tints[labels][:, :, None, None]
        return pixels.clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous(), labels

    return some(256), some(64)


class TestPackedAttention:
    def test_weights_have_the_same_names_order_and_values(self, pair: tuple[nn.Module, nn.Module]) -> None:
        theirs, ours = (model.state_dict() for model in pair)
        assert list(theirs) == list(ours)
        assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
        assert [name for name, _ in pair[0].named_parameters()] == [name for name, _ in pair[1].named_parameters()]

    def test_a_checkpoint_of_one_loads_into_the_other(self, pair: tuple[nn.Module, nn.Module]) -> None:
        pair[0].load_state_dict(pair[1].state_dict())
        pair[1].load_state_dict(pair[0].state_dict())

    @pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
    def test_outputs_are_equal_but_for_rounding(
        self, pair: tuple[nn.Module, nn.Module], rows: Batch, mode: bool
    ) -> None:
        with torch.inference_mode():
            theirs, ours = (self.with_a_head(model).train(mode)(rows[0]) for model in pair)
        assert theirs.std() > 0.1, "they say nothing"
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)

    def test_gradients_are_equal_but_for_rounding(self, pair: tuple[nn.Module, nn.Module], rows: Batch) -> None:
        found = []
        for model in pair:
            self.with_a_head(model).train().zero_grad()
            cross_entropy(model(rows[0]), rows[1]).backward()  # type: ignore[no-untyped-call]
            found.append({name: weight.grad for name, weight in model.named_parameters()})
        assert all(gradient is not None and gradient.any() for gradient in found[0].values())
        for name, gradient in found[0].items():
            torch.testing.assert_close(found[1][name], gradient, rtol=1e-3, atol=1e-6)

    @staticmethod
    def with_a_head(model: nn.Module) -> nn.Module:
        """The model with another last layer: torchvision's begins with zeros, so that all outputs are zero."""
        head = model.get_submodule("heads.head")
        assert isinstance(head, nn.Linear)
        nn.init.normal_(head.weight, std=0.1, generator=torch.Generator().manual_seed(1))
        return model


class TestAirbench:
    def test_first_layer_whitens_the_patches_of_the_images_it_is_given(self) -> None:
        model, generator = built("airbench94"), torch.Generator().manual_seed(0)
        coarse = torch.randn(64, 3, 8, 8, generator=generator)  # neighbouring pixels are alike, as in photographs
        images = nn.functional.interpolate(coarse, size=32, mode="bilinear")
        model.initialize_from(images)  # type: ignore[operator]
        whitened = model.get_submodule("whitening")(images).detach()
        half = whitened.shape[1] // 2
        assert torch.equal(whitened[:, half:], -whitened[:, :half])
        rows = whitened[:, :half].transpose(0, 1).flatten(1)
        power = (rows @ rows.T / rows.shape[1]).diagonal()
        shares = rows @ rows.T / rows.shape[1] / (power[:, None] * power[None, :]).sqrt()
        torch.testing.assert_close(shares, torch.eye(half), rtol=0, atol=1e-3)
        assert power.max() <= 1.001 and (power > 0.5).sum() >= 3

    def test_the_whitening_and_the_scales_of_norms_are_frozen_and_all_else_learns(self) -> None:
        model = built("airbench94").train()
        loss = cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.tensor([0, 1, 2, 3]))
        loss.backward()  # type: ignore[no-untyped-call]
        frozen = {name for name, weight in model.named_parameters() if weight.grad is None}
        norms = {name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
        assert frozen == {"whitening.weight"} | {f"{name}.weight" for name in norms} and len(norms) == 6

    def test_deeper_convolutions_begin_as_the_identity(self) -> None:
        weight = built("airbench94").get_parameter("groups.1.conv1.weight")
        inputs = torch.randn(1, 64, 5, 5)
        outputs = nn.functional.conv2d(inputs, weight, padding="same")
        torch.testing.assert_close(outputs[:, :64], inputs)

    def test_evaluation_weighs_mirrored_and_shifted_views_as_the_record_does(self) -> None:
        model = built("airbench94").eval()
        assert isinstance(model, Airbench94)
        images = torch.randn(2, 3, 32, 32)
        padded = nn.functional.pad(images, (1, 1, 1, 1), mode="reflect")
        with torch.inference_mode():
            kept, first, second = (
                (model.one_view(view) + model.one_view(view.flip(3))) / 2
                for view in (images, padded[:, :, :32, :32], padded[:, :, 2:34, 2:34])
            )
            torch.testing.assert_close(model(images), 0.5 * kept + 0.25 * first + 0.25 * second)

    def test_images_that_are_too_small_are_refused(self) -> None:
        with pytest.raises(ValueError, match="airbench94 requires images of at least 17 x 17 pixels, got 16 x 40"):
            built("airbench94", image_shape=(16, 40, 3))


class TestAirbenchRecipe:
    @staticmethod
    def trainer(colours: tuple[Batch, Batch]) -> Trainer:
        """A short run of the recipe in fp32, before its first step."""
        small: dict[str, Any] = {"batch_size": 32, "epochs": 2, "precision": "fp32", "device": "cpu", "step": "eager"}
        usual = recipes.load("cifar10-airbench")
        recipe = dataclasses.replace(usual, **small, learning_rate=usual.learning_rate * 32 / usual.batch_size)
        seed_everything(recipe.seed)
        colour = {"mean": (90.0,) * 3, "std": (50.0,) * 3}
        model = Classifier(ModelSpec(model=recipe.model, image_shape=(17, 17, 3), classes=tuple("abcd"), **colour))
        loader = ResidentLoader(*colours, seed=recipe.seed, rank=0, device=CPU)
        training_state.initialize_from_rows(model, loader)
        return Trainer(recipe, model, loader, precision="fp32", device=CPU)

    def test_it_learns_with_a_whitening_that_stays(self, colours: tuple[Batch, Batch]) -> None:
        trainer = self.trainer(colours)
        whitening = trainer.model.backbone.get_parameter("whitening.weight")
        before = whitening.clone()
        metrics = [trainer.run_epoch(epoch) for epoch in (1, 2)]
        assert metrics[-1].validation_accuracy > 0.75, "a guess is right in one of four"
        assert torch.equal(whitening, before)

    def test_equal_rows_give_equal_whitenings_and_other_rows_others(self, colours: tuple[Batch, Batch]) -> None:
        one, again = self.trainer(colours), self.trainer(colours)
        assert same(weights(one), weights(again))
        other = self.trainer(((255 - colours[0][0] // 2, colours[0][1]), colours[1]))
        assert not torch.equal(weights(other)["backbone.whitening.weight"], weights(one)["backbone.whitening.weight"])


def test_half_of_the_images_are_mirrored_in_turn_whatever_the_order_of_rows() -> None:
    images = torch.randint(0, 256, (200, 4, 6, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    first, second, third = (flipped_in_turn(images, epoch=epoch) for epoch in (1, 2, 3))
    assert torch.equal(first, third) and torch.equal(second, first.flip(2))
    mirrored = [torch.equal(new, old.flip(1)) for new, old in zip(first, images, strict=True)]
    assert 70 < sum(mirrored) < 130
    assert torch.equal(flipped_in_turn(images[50:60].flip(0), epoch=1), first[50:60].flip(0))
