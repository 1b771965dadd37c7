"""An image has one embedding, whatever is computed beside it."""

import numpy as np
import pytest
import torch

from storage.statistics import ModelSpec
from tasks.learning.embedding import Embedder
from tasks.learning.modeling import Classifier, detach_last_layer, linear_head

BACKBONES = {
    "timm/tf_efficientnet_lite0": (64, 64, 3),
    "timm/resnet18": (64, 64, 3),
    "timm/mobilenetv3_small_100": (64, 64, 3),
    "resnet18": (32, 32, 3),
    "small-cnn": (28, 28, 1),
    "vit-patch4": (32, 32, 3),
}


def classifier(model: str, shape: tuple[int, int, int]) -> Classifier:
    torch.manual_seed(0)
    mean, std = (127.5,) * shape[2], (64.0,) * shape[2]
    return Classifier(ModelSpec(model=model, image_shape=shape, classes=("a", "b", "c"), mean=mean, std=std))


@pytest.mark.parametrize(("model", "shape"), BACKBONES.items(), ids=BACKBONES)
def test_embedding_does_not_depend_on_other_images_or_threads(model: str, shape: tuple[int, int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    one, several = (
        Embedder(classifier(model, shape), threads=threads, device=torch.device("cpu")) for threads in (1, 3)
    )
    together = several.embeddings(pixels)
    alone = np.concatenate([one.embeddings(pixels[number : number + 1]) for number in reversed(range(5))])[::-1]
    assert together.tobytes() == alone.tobytes() and together.dtype == np.float16 and together.std(0).any()


@pytest.mark.parametrize(("model", "shape"), BACKBONES.items(), ids=BACKBONES)
def test_head_on_the_embedding_gives_the_logits_of_the_model(model: str, shape: tuple[int, int, int]) -> None:
    images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    whole, backbone = classifier(model, shape).eval(), classifier(model, shape).eval()
    detach_last_layer(backbone)
    with torch.inference_mode():
        logits = linear_head(whole)(backbone.backbone(backbone.normalized(images)))
        torch.testing.assert_close(logits, whole(images))


def test_embeddings_that_float16_cannot_hold_are_refused() -> None:
    model = classifier("small-cnn", (28, 28, 1))
    with torch.no_grad():
        for weight in model.backbone.parameters():
            weight.mul_(1e4)
    embedder = Embedder(model, threads=1, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="model small-cnn gives embeddings that are not finite in float16"):
        embedder.embeddings(np.full((1, 28, 28, 1), 255, np.uint8))
