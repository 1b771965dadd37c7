"""Recipes for CIFAR-10. They require a GPU; `--set device=cpu` computes on CPUs."""

from tasks.learning.recipes import AdamW, Data, Gate, PixelAugment, Recipe, Resources, Training


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
