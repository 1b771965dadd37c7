"""Recipes of the project: for MNIST and its sample, for CIFAR-10 on a GPU, and for user images (`--data`)."""

import dataclasses

from tasks.learning.recipes import AdamW, Data, Gate, PixelAugment, Pretrained, Probe, Recipe, Resources, Training
from tasks.learning.sources import USER_IMAGES


def mnist_resnet18() -> Recipe:
    """Return ResNet-18 on all of MNIST: 99.3% test accuracy and more in three epochs on a CPU."""
    return Recipe(
        name="mnist-resnet18",
        data=Data(source="mnist"),
        model="resnet18",
        training=Training(epochs=3),
        gate=Gate(minimum=0.98),
    )


def mnist_sample_resnet18() -> Recipe:
    """Return the default recipe: `mnist-resnet18` for the bundled sample, a tenth of the rows, so smaller batches."""
    return Recipe(
        name="mnist-sample-resnet18",
        data=Data(source="mnist-sample"),
        model="resnet18",
        training=Training(epochs=4, batch_size=64),
        gate=Gate(minimum=0.9),
    )


def cifar10_resnet18() -> Recipe:
    """Return the recommended recipe: ResNet-18 with a stem for small images, shifts, mirroring, 30 epochs."""
    return Recipe(
        name="cifar10-resnet18",
        data=Data(source="cifar10"),
        model="resnet18-3x3",
        training=Training(
            epochs=30,
            batch_size=512,
            optimizer=AdamW(learning_rate=4e-3, weight_decay=5e-2),
            label_smoothing=0.1,
            augment=PixelAugment(max_shift=4, flip="horizontal"),
        ),
        gate=Gate(minimum=0.9),
        resources=Resources(device="cuda"),
    )


def cifar10_vit() -> Recipe:
    """Return Ray Train's tutorial as a recipe: its ViT, optimizer and batch size, plus schedule, shifts, mirroring."""
    return Recipe(
        name="cifar10-vit",
        data=Data(source="cifar10"),
        model="vit-patch4",
        training=Training(
            epochs=20,
            batch_size=512,
            optimizer=AdamW(learning_rate=1e-3, weight_decay=1e-2),
            augment=PixelAugment(max_shift=4, flip="horizontal"),
        ),
        gate=Gate(minimum=0.35),
        resources=Resources(device="cuda"),
    )


def images_finetune() -> Recipe:
    """Return the default recipe: EfficientNet-Lite0, pretrained on ImageNet, on 128 x 128 RGB.

    A package ships its weights, so that it needs no network. Image size, epochs and learning rate were chosen by the
    accuracy that they give in equal time on three small datasets (docs/internals/photos.md).
    """
    return Recipe(
        name="images-finetune",
        data=Data(source=USER_IMAGES, image_size=128, channels=3),
        model="timm/tf_efficientnet_lite0",
        training=Training(
            epochs=5,
            batch_size=0,
            start=Pretrained(),
            ensemble="probe",
            optimizer=AdamW(learning_rate=1e-3),
            augment=PixelAugment(max_shift=6),
        ),
        gate=Gate(minimum=0.0),
    )


def images_probe() -> Recipe:
    """Return a linear probe on EfficientNet-Lite0, pretrained on ImageNet, on 128 x 128 RGB: an answer in seconds.

    Image size and gate are those of `images-finetune`, so that models of both can compete.
    """
    return dataclasses.replace(images_finetune(), name="images-probe", training=Probe())


def images_resnet18() -> Recipe:
    """Return ResNet-18 on 128 x 128 RGB; its first model becomes champion if it beats predicting the largest class."""
    return Recipe(
        name="images-resnet18",
        data=Data(source=USER_IMAGES, image_size=128, channels=3),
        model="resnet18",
        training=Training(epochs=10, batch_size=0, augment=PixelAugment(max_shift=4)),
        gate=Gate(minimum=0.0),
    )
