"""airbench94 on CIFAR-10: 94 % test accuracy within seconds on one GPU, after the published record."""

from tasks.learning.recipes import Recipe


def recipe() -> Recipe:
    """Return the recipe: network, optimizer, schedule and augmentation of Keller Jordan's airbench94.

    From arXiv 2404.00498 and github.com/KellerJordan/cifar10-airbench, `legacy/airbench94.py`. There the learning rate
    is 11.5 for 1,024 rows before division by 1 + 1 / (1 - momentum), and the weight decay is relative to it. Other than
    there: no Lookahead, shifted images are filled with black instead of reflected, and the bias of the first layer is
    trained to the end. Five more epochs are to make up for that and for the tenth of the rows that is kept for
    validation. It takes a GPU; `--set device=cpu` computes on CPUs.
    """
    momentum = 0.85
    return Recipe(
        name="cifar10-airbench",
        data="cifar10",
        model="airbench94",
        epochs=15,
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
