"""A vision transformer on CIFAR-10, as in Ray Train's tutorial."""

from tasks.learning.recipes import Recipe


def recipe() -> Recipe:
    """Return the recipe: the tutorial's model, optimizer and batch size, plus one-cycle schedule, shifts, mirroring.

    It takes a GPU; `--set device=cpu` computes on CPUs.
    """
    return Recipe(
        name="cifar10-vit",
        data="cifar10",
        model="vit-patch4",
        epochs=20,
        batch_size=512,
        learning_rate=1e-3,
        weight_decay=1e-2,
        max_shift=4,
        flip="horizontal",
        device="cuda",
        step="auto",
        accuracy_floor=0.35,
    )
