"""Real models pass the proof of their export on photo-like images."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from storage.kinds import DatasetURI
from storage.statistics import ModelSpec
from tasks.exporting import onnx_file
from tasks.exporting.proof import NotEqual, prove
from tasks.learning import pretrained
from tasks.learning.inference import Model
from tasks.learning.modeling import Classifier, last_layer
from tests.jobs import raw
from tests.learning.training import LITE0

SHAPE = (64, 64, 3)
RANDOM = ("resnet18", "mobilenetv3_small_100", "vit_tiny_patch16_224", "convnext_atto")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> DatasetURI:
    """1,000 test rows of large and small patches of color, as photos have them."""
    draw = np.random.default_rng(0)
    pixels = np.zeros((1000, *SHAPE))
    for size in (1, 4, 16, 64):
        patches = draw.uniform(0, 64, (1000, 64 // size, 64 // size, 3))
        pixels += patches.repeat(size, axis=1).repeat(size, axis=2)
    return raw.write_prepared(
        tmp_path_factory.mktemp("proof"), SHAPE, {"test": [(np.arange(1000) % 3, pixels.astype(np.uint8))]}
    )


def trained(name: str) -> Model:
    """A model with the default recipe's published weights, or random ones, whose head tells images apart."""
    torch.manual_seed(0)
    spec = ModelSpec(model=name, image_shape=SHAPE, classes=raw.CLASSES, mean=(127.5,) * 3, std=(127.5,) * 3)
    classifier = Classifier(spec)
    if name == LITE0:
        pretrained.start_from(classifier, pretrained.read_published(name))
    layer = last_layer(classifier.backbone)
    assert layer
    torch.nn.init.normal_(layer.weight, std=0.3)
    return Model(classifier, [], precision="fp32").eval().requires_grad_(False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [LITE0, *(f"timm/{name}" for name in RANDOM)])
def test_real_architecture_is_equal_to_its_file_on_1000_images(name: str, rows: DatasetURI) -> None:
    outputs = onnx_file.Outputs(trained(name))
    exported = onnx_file.load(onnx_file.write(outputs, {}))
    proof = prove(exported, lambda images: [each.numpy() for each in outputs(images)], rows, classes=raw.CLASSES)
    assert proof.rows == 1000 and proof.largest_difference < 1e-3


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_what_may_differ_does_not_depend_on_the_order_of_the_rows(order: list[int], tmp_path: Path) -> None:
    def outputs(difference: float, images: np.ndarray, *, turned: float = 0.5) -> list[np.ndarray]:
        largest = np.array([0.1 + difference, 1, 4])[images[:, 0, 0, 0]]
        odds = np.exp(np.stack([largest, 0 * largest, -largest], 1))
        return [odds / odds.sum(1, keepdims=True), np.full((len(images), 2), [0.5, turned])]

    pixels = np.array(order, np.uint8).reshape(3, 1, 1, 1)
    rows = raw.write_prepared(tmp_path, (1, 1, 1), {"test": [(np.array(order), pixels)]})
    compared = partial(prove, model=partial(outputs, 0.0), dataset=rows, classes=raw.CLASSES)
    assert compared(partial(outputs, 0.003)).rows == 3, "of the largest logit, 4, a thousandth is allowed"
    with pytest.raises(NotEqual, match="test row 0 are .* 1.5 times"):
        compared(partial(outputs, 0.006))
    for turned in (0.51, float("nan")):
        with pytest.raises(NotEqual, match="other embeddings"):
            compared(partial(outputs, 0.003, turned=turned))
