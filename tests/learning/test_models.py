"""Models by name: the project's, torchvision's and timm's, for images of other sizes and channels."""

import importlib.util
import re
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torch.overrides import TorchFunctionMode

from tasks.learning import models, recipes
from tasks.learning.head import head_of
from tasks.learning.modeling import Classifier, ModelSpec
from tasks.learning.sources import USER_IMAGES, load

TORCHVISIONS = torchvision.models.list_models(module=torchvision.models)


class WeightsOnMeta(TorchFunctionMode):
    """Weights take no memory; `torch.device("meta")` would also take the numbers that RegNet reads its widths from."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = {"device": "meta"} if func in (torch.empty, torch.zeros, torch.ones) else {}
        return func(*args, **(kwargs or {}) | options)


def on_meta(name: str, *, size: int) -> nn.Module:
    """The classifier `name` of three classes for images of `size` pixels per side, without memory for its weights."""
    with WeightsOnMeta() if name.startswith("regnet") else torch.device("meta"):
        return models.build(name, image_shape=(size, size, 3), num_classes=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [models.canonical(name) for name in TORCHVISIONS])
def test_every_classifier_of_torchvision_gives_logits_from_its_smallest_images_on(name: str) -> None:
    size = 4  # the smallest `image_size` of a recipe
    try:
        model = on_meta(name, size=size)
    except ValueError as error:
        assert re.match(f"model {name} requires .* got 4 x 4; ", str(error))
        size = int(str(error).rpartition("--set image_size=")[2])
        model = on_meta(name, size=size)
    assert model(torch.zeros(2, 3, size, size, device="meta")).shape == (2, 3)
    assert len(model.get_parameter(f"{head_of(model)}.weight")) == 3


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("vit-b-32", 48, "square images with a side that is a multiple of 32, got 48 x 48; .* image_size=32"),
        ("maxvit-t", 96, "square images with a side that is a multiple of 224, got 96 x 96; .* image_size=224"),
        ("alexnet", 62, "images of at least 63 x 63 pixels, got 62 x 62; use --set image_size=63"),
    ],
)
def test_images_too_small_for_a_model_are_refused_with_the_smallest_size(name: str, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        on_meta(name, size=size)


@pytest.mark.parametrize("name", ["timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"])
def test_a_model_of_timm_takes_images_of_the_recipes_size_and_channels(name: str) -> None:
    recipe = recipes.override(recipes.load("images-resnet18"), [f"model={name}"])
    model = models.build(recipe.model, image_shape=(48, 48, 1), num_classes=3)
    assert model(torch.zeros(2, 1, 48, 48)).shape == (2, 3)
    assert len(model.get_parameter(f"{head_of(model)}.weight")) == 3


def test_a_model_of_timm_without_timm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"timm/resnet50 needs timm, .*: pip install data-to-model\[timm\]$"):
        models.check_known("timm/resnet50")


def test_unknown_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be one that timm.list_models\(\) names, .* got 'timm/resnet19'"):
        models.check_known("timm/resnet19")
    with pytest.raises(ValueError, match=r"timm.list_pretrained\(\) names, got 'timm/resnet18.none': Invalid .* tag"):
        models.check_known("timm/resnet18.none")
    with pytest.raises(ValueError, match="one of resnet18, .* such as resnet34 .*, got 'resnet19'"):
        models.check_known("resnet19")


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


def test_a_classifier_of_torchvisions_has_one_name_and_takes_any_number_of_channels() -> None:
    recipe = recipes.override(recipes.load("images-resnet18"), ["model=mobilenet_v3_small"])
    assert recipe.model == "mobilenet-v3-small"
    model = models.build(recipe.model, image_shape=(64, 64, 1), num_classes=3)
    assert model(torch.zeros(2, 1, 64, 64)).shape == (2, 3), "in training too"
