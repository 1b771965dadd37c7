"""Models by name: the project's and timm's, for images of other sizes and channels."""

import pytest
import torch

from storage.statistics import ModelSpec
from tasks.learning import models, recipes
from tasks.learning.modeling import Classifier, head_of, move_model, resolve_precision
from tasks.learning.sources import USER_IMAGES, load
from tests.learning.training import CPU


def test_a_model_of_timm_takes_images_of_any_size_and_channels() -> None:
    name = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    model = models.build(name, image_shape=(48, 48, 1), num_classes=3)
    assert model(torch.zeros(2, 1, 48, 48)).shape == (2, 3)
    assert len(model.get_parameter(f"{head_of(model)}.weight")) == 3


def test_images_that_a_model_cannot_take_are_refused() -> None:
    with pytest.raises(ValueError, match="square images with a side that is a multiple of 4, got 30 x 30"):
        models.build("vit-patch4", image_shape=(30, 30, 3), num_classes=3)


@pytest.mark.parametrize("name", recipes.known())
def test_the_model_of_every_recipe_gives_one_logit_for_each_class(name: str) -> None:
    recipe = recipes.load(name)
    size, classes = recipe.data.image_size, tuple("abc")
    shape = (
        (size, size, recipe.data.channels)
        if recipe.data.source == USER_IMAGES
        else load(recipe.data.source).image_shape
    )
    spec = ModelSpec(
        model=recipe.model, image_shape=shape, classes=classes, mean=(100.0,) * shape[2], std=(50.0,) * shape[2]
    )
    images = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    assert Classifier(spec).eval()(images).shape == (2, 3)


def test_depthwise_convolutions_are_computed_in_fp32_and_channels_last_on_a_cpu() -> None:
    depthwise = torch.nn.Conv2d(4, 4, 1, groups=4)
    assert [resolve_precision(precision, CPU, depthwise) for precision in ("auto", "bf16")] == ["fp32", "bf16"]

    def is_channels_last(model: str, precision: str) -> bool:
        spec = ModelSpec(model=model, image_shape=(32, 32, 3), classes=tuple("abc"), mean=(0.0,) * 3, std=(1.0,) * 3)
        moved = move_model(Classifier(spec), precision=precision, device=CPU)
        weights = [weight for weight in moved.backbone.parameters() if weight.dim() == 4 and min(weight.shape) > 1]
        return all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)

    assert [is_channels_last("resnet18", precision) for precision in ("fp32", "bf16")] == [False, True]
    assert is_channels_last("timm/mobilenetv3_small_050", "fp32")
