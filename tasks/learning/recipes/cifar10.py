"""Recipes for CIFAR-10. They require a GPU; `--set device=cpu` computes on CPUs."""

from tasks.learning.recipes import Recipe


def cifar10_resnet18() -> Recipe:
    """Return the recommended recipe: ResNet-18 with a stem for small images, shifts, mirroring, 30 epochs."""
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


def cifar10_vit() -> Recipe:
    """Return Ray Train's tutorial as a recipe: its ViT, optimizer and batch size, plus schedule, shifts, mirroring."""
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


def cifar10_airbench() -> Recipe:
    """Return a recipe after Keller Jordan's airbench94: its network, optimizer, schedule and augmentation.

    From arXiv 2404.00498 and github.com/KellerJordan/cifar10-airbench, `legacy/airbench94.py`. There the learning rate
    is 11.5 for 1,024 rows before division by 1 + 1 / (1 - momentum), and the weight decay is relative to it. From the
    same weights and batches, both compute the same steps (docs/gpu.md). Differences: no Lookahead, shifted images are
    filled with black instead of reflected, the bias of the first layer is trained to the end, and bf16 instead of fp16.
    24 epochs instead of 9.9 are meant to compensate for these, and for the validation rows.
    """
    momentum = 0.85
    return Recipe(
        name="cifar10-airbench",
        data="cifar10",
        model="airbench94",
        epochs=24,
        batch_size=1024,
        optimizer="sgd",
        learning_rate=11.5 / (1 + 1 / (1 - momentum)),
        momentum=momentum,
        weight_decay=0.0153 / 11.5,
        norm_bias_scale=64.0,
        schedule="triangular",
        warmup_fraction=0.23,
        label_smoothing=0.2,
        max_shift=2,
        flip="alternating",
        device="cuda",
        step="auto",
        accuracy_floor=0.93,
    )
