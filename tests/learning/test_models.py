"""Models by name: the project's and timm's, for images of other sizes and channels."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.models import VisionTransformer

from storage.statistics import ModelSpec
from tasks.learning import models, recipes
from tasks.learning.modeling import Classifier, count_flops, head_of, move_model, resolve_precision
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


def test_arithmetic_of_resnet18_is_counted_as_its_authors_do() -> None:
    classes = tuple(map(str, range(1000)))
    spec = ModelSpec(model="resnet18", image_shape=(224, 224, 3), classes=classes, mean=(0.0,) * 3, std=(1.0,) * 3)
    assert count_flops(Classifier(spec)) == pytest.approx(2 * 1.8e9, rel=0.02), "two for each multiply-add"


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


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the tensor operations in a block, except those that only view a tensor in another shape."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func is not torch.ops.aten.detach.default:
            self.operations[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def _passes(model: nn.Module, images: Tensor) -> tuple[Tensor, dict[str, Tensor], Counter[str]]:
    """Logits, gradients by name, and the operations of a forward and a backward pass."""
    with _Counted() as counted:
        logits = model.train()(images)
        cross_entropy(logits, torch.arange(len(images))).backward()  # type: ignore[no-untyped-call]
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return logits.detach(), gradients, counted.operations


def test_packed_attention_computes_what_torchvisions_does_from_the_same_weights_in_fewer_operations() -> None:
    torch.manual_seed(0)
    usual = VisionTransformer(
        image_size=32, patch_size=4, num_layers=12, num_heads=8, hidden_dim=384, mlp_dim=768, num_classes=10
    )
    nn.init.normal_(usual.heads.head.weight, std=0.1)  # else 0, and no other weight gets a gradient
    packed = models.build("vit-patch4", image_shape=(32, 32, 3), num_classes=10)
    packed.load_state_dict(usual.state_dict())
    images = torch.randn(2, 3, 32, 32)
    logits, gradients, operations = _passes(packed, images)
    expected_logits, expected, usual_operations = _passes(usual, images)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-5)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6, msg=name)
    assert operations.total() < 0.8 * usual_operations.total()
    assert operations["clone"] == 0 < usual_operations["clone"], "copies"


@pytest.mark.parametrize(("model", "at_least"), [(models.LITE0, 400), ("resnet18", 150)])
def test_a_step_of_the_default_models_is_hundreds_of_launches_which_a_graph_replays_as_one(
    model: str, at_least: int
) -> None:
    module = models.build(model, image_shape=(128, 128, 3), num_classes=10)
    *_, operations = _passes(module, torch.randn(2, 3, 128, 128))
    assert operations.total() > at_least
