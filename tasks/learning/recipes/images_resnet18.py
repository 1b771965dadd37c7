"""ResNet-18 on a person's own images, a folder or Parquet: what is trained when `--data` names such."""

from tasks.learning.datasets import OWN
from tasks.learning.recipes import Recipe


def recipe() -> Recipe:
    """ResNet-18 on images of 64 x 64 in colour; the first model is in charge whatever it reaches."""
    return Recipe(
        name="images-resnet18",
        data=OWN,
        model="resnet18",
        epochs=10,
        batch_size=32,
        max_shift=4,
        image_size=64,
        channels=3,
        accuracy_floor=0.0,
    )
