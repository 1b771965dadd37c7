"""The default recipe for `--data`: the user's own images, a folder or Parquet files."""

from tasks.learning.recipes import Recipe
from tasks.learning.sources import USER_IMAGES


def images_resnet18() -> Recipe:
    """Return ResNet-18 on 64 x 64 RGB; its first model becomes champion if it beats predicting the largest class.

    Folders have few test rows, where a single image proves nothing: later models must be significantly better.
    """
    return Recipe(
        name="images-resnet18",
        data=USER_IMAGES,
        model="resnet18",
        epochs=10,
        batch_size=32,
        max_shift=4,
        image_size=64,
        channels=3,
        accuracy_floor=0.0,
        significance=0.05,
    )
