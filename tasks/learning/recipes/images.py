"""The default recipe for `--data`: user images, a folder or Parquet files."""

from tasks.learning.recipes import Data, Gate, PixelAugment, Recipe, Training
from tasks.learning.sources import USER_IMAGES


def images_resnet18() -> Recipe:
    """Return ResNet-18 on 64 x 64 RGB; its first model becomes champion if it beats predicting the largest class.

    Folders have few test rows, where a single image proves nothing: later models must be significantly better.
    """
    return Recipe(
        name="images-resnet18",
        data=Data(source=USER_IMAGES, image_size=64, channels=3),
        model="resnet18",
        training=Training(epochs=10, batch_size=32, augment=PixelAugment(max_shift=4)),
        gate=Gate(minimum=0.0, max_p_value=0.05),
    )
