"""Models that compute the same as another one."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tasks.learning import models
from tasks.learning.loop import Batch, seed_everything

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


class TestPackedAttention:
    def test_weights_have_the_same_names_order_and_values(self, pair: tuple[nn.Module, nn.Module]) -> None:
        theirs, ours = (model.state_dict() for model in pair)
        assert list(theirs) == list(ours)
        assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
        assert [name for name, _ in pair[0].named_parameters()] == [name for name, _ in pair[1].named_parameters()]

    def test_outputs_and_gradients_are_equal_but_for_rounding(
        self, pair: tuple[nn.Module, nn.Module], rows: Batch
    ) -> None:
        found, outputs = [], []
        for model in pair:
            self.with_a_head(model).train().zero_grad()
            outputs.append(model(rows[0]))
            cross_entropy(outputs[-1], rows[1]).backward()  # type: ignore[no-untyped-call]
            found.append({name: weight.grad for name, weight in model.named_parameters()})
        assert outputs[0].std() > 0.1, "they say nothing"
        torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
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
