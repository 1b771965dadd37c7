"""Models by name: ours and torchvision's, for images of other sizes and channels."""

import pytest
import torch

from tasks.learning import models, recipes
from tasks.learning.augmentation import flipped
from tasks.learning.modeling import Classifier, ModelSpec
from tasks.learning.sources import USER_IMAGES, load
from tests.learning import training


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


@pytest.mark.parametrize("name", ["resnet34", "mobilenet-v3-small", "googlenet"])
def test_a_classifier_of_torchvisions_takes_any_number_of_channels(name: str) -> None:
    model = models.build(name, image_shape=(64, 64, 1), num_classes=3)
    assert model(torch.zeros(2, 1, 64, 64)).shape == (2, 3), "in training too"


def test_a_first_layer_that_fits_keeps_its_weights() -> None:
    model = models.build("resnet34", image_shape=(32, 32, 3), num_classes=3)
    before = model.state_dict()["conv1.weight"].clone()
    assert torch.equal(models.with_channels(model, 3).state_dict()["conv1.weight"], before)


def test_unknown_model_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="one of resnet18, .* such as resnet34 .*, got 'resnet19'"):
        models.check_known("resnet19")


def test_images_that_patches_do_not_fill_are_refused() -> None:
    with pytest.raises(ValueError, match="vit-patch4 requires square images .* got 30 x 30"):
        models.build("vit-patch4", image_shape=(30, 30, 3), num_classes=10)


def test_about_half_of_the_images_are_mirrored_the_same_ones_for_the_same_generator() -> None:
    images = torch.arange(100 * 2 * 3, dtype=torch.int16).reshape(100, 2, 3, 1)
    once, again = (flipped(images, numbers[-1]) for numbers in (training.numbers(100, seed=0) for _ in range(2)))
    assert torch.equal(once, again)
    mirrored = sum(torch.equal(new, old.flip(1)) for new, old in zip(once, images, strict=True))
    kept = sum(torch.equal(new, old) for new, old in zip(once, images, strict=True))
    assert mirrored + kept == 100 and 30 < mirrored < 70
