"""The notebook's arm: what Ray's tutorials do, written afresh. Images are nested lists of ints in Parquet."""

from pathlib import Path

import numpy as np
import pandas as pd


def write(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """One Parquet file with a nested list for each image."""
    rows = [{"image": image.tolist(), "label": int(label)} for image, label in zip(images[..., 0], labels, strict=True)]
    pd.DataFrame(rows).to_parquet(path)
