"""ResNet-18 on CIFAR-10: the recommended recipe for this data set."""

from tasks.learning.recipes import Recipe


def recipe() -> Recipe:
    """Return the recipe: ResNet-18 with a stem for small images, shifts, mirroring, 30 epochs.

    It takes a GPU; `--set device=cpu` computes on CPUs.
    """
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
        device="cuda",
        step="auto",
        accuracy_floor=0.9,
    )
