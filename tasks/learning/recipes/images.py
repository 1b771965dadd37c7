"""Recipes for `--data`, user images in a folder or Parquet files; `images-finetune` is the default."""

from tasks.learning.recipes import AdamW, Data, Gate, PixelAugment, Pretrained, Recipe, Training
from tasks.learning.sources import USER_IMAGES

_IMAGE_SIZE = 128


def images_finetune() -> Recipe:
    """Return the default recipe: EfficientNet-Lite0, pretrained on ImageNet, on 128 x 128 RGB.

    A package ships its weights, so that it needs no network. Image size, epochs and learning rate were chosen by the
    accuracy that they give in equal time on three small datasets (docs/fine-tuning.md).
    """
    return Recipe(
        name="images-finetune",
        data=Data(source=USER_IMAGES, image_size=_IMAGE_SIZE, channels=3),
        model="timm/tf_efficientnet_lite0",
        training=Training(
            epochs=5,
            batch_size=0,
            start=Pretrained(),
            optimizer=AdamW(learning_rate=1e-3),
            augment=PixelAugment(max_shift=6),
        ),
        gate=Gate(minimum=0.0),
    )


def images_resnet18() -> Recipe:
    """Return ResNet-18 on 128 x 128 RGB; its first model becomes champion if it beats predicting the largest class."""
    return Recipe(
        name="images-resnet18",
        data=Data(source=USER_IMAGES, image_size=_IMAGE_SIZE, channels=3),
        model="resnet18",
        training=Training(epochs=10, batch_size=0, augment=PixelAugment(max_shift=4)),
        gate=Gate(minimum=0.0),
    )
