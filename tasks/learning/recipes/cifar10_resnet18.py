"""ResNet-18 on CIFAR-10: the one to deploy."""

from tasks.learning.recipes import Recipe


def recipe() -> Recipe:
    """ResNet-18 with a stem for small images, crops and mirror images, one cycle of 30 epochs; made for a GPU."""
    return Recipe(
        name="cifar10-resnet18",
        data="cifar10",
        model="resnet18-3x3",
        epochs=30,
        batch_size=512,
        learning_rate=4e-3,
        weight_decay=5e-2,
        label_smoothing=0.1,
        max_shift=4,
        flip="horizontal",
        accuracy_floor=0.9,
    )
