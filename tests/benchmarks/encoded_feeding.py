"""Rows per second that a cluster's CPUs decode and augment: `python -m tests.benchmarks.encoded_feeding --cpus 2`.

Generated JPEG pictures of about 320 x 300 pixels, cropped at random to 256 x 256, mirrored and changed in colour, on a
local Ray with one CPU more than asked for, because Ray Data 2.60 never uses the last one; this process takes the
batches, as a training worker does.
"""

import argparse
import io
import os
import tempfile
import time

import numpy as np
import pyarrow as pa
import ray
import torch
from PIL import Image

from storage import commits, manifest, tables
from storage.uri import DatasetURI
from tasks.jobs import dataset_parts
from tasks.jobs.train.ray_loader import RayDataRows
from tasks.learning import images, recipes
from tasks.learning.transforms import Transform

_SIZE = 256
_CLASSES = ("one", "two")


def write(folder: str, *, rows: int) -> DatasetURI:
    """Write a prepared dataset of `rows` encoded pictures."""
    uri, random = DatasetURI(f"{folder}/pictures-0123456789ab"), np.random.default_rng(0)
    contents = [_jpeg(random) for _ in range(rows)]
    columns = images.schema((_SIZE, _SIZE, 3), _CLASSES, encoding=images.ENCODED)
    listed = []
    count = images.num_parts(rows, (_SIZE, _SIZE, 3), encoded_bytes=sum(map(len, contents)))
    for index, (start, stop) in enumerate(images.part_bounds(rows, count)):
        part = {
            "id": range(start, stop),
            "image": contents[start:stop],
            "label": [row % 2 for row in range(start, stop)],
        }
        arrays = [pa.array(part[name], columns.field(name).type) for name in columns.names]
        listed.append(tables.write_part(uri, pa.table(arrays, schema=columns), split="train", index=index))
    commits.commit(uri, kind="prepared", parents={}, parameters={}, listed=listed, schema=tables.describe(columns))
    return uri


def _jpeg(random: np.random.Generator) -> bytes:
    coarse = Image.fromarray(random.integers(0, 256, (38, 40, 3), dtype=np.uint8))
    sink = io.BytesIO()
    coarse.resize((320, 304), Image.Resampling.BICUBIC).save(sink, "JPEG", quality=90)
    return sink.getvalue()


def rate(uri: DatasetURI) -> float:
    """Return images per second of a second pass, when the tasks' processes have imported what they need."""
    augmentation = {"image_encoding": "encoded", "crop_scale": 0.25, "flip": "horizontal", "color_jitter": 0.3}
    recipe = recipes.override(recipes.load("images-resnet18"), augmentation)
    transform = Transform(recipe, (_SIZE, _SIZE, 3))
    slices = {"train": dataset_parts.whole_files(manifest.load(uri).split("train"))}
    shape, cpu = transform.image_shape, torch.device("cpu")
    rows = RayDataRows(uri, slices, shape, transform, cpu, prefetch_batches=1, world_size=1)
    seconds, count = 0.0, 0
    for epoch in (1, 2):
        begun = time.perf_counter()
        count = sum(len(labels) for _, labels in rows.windows("train", size=64, epoch=epoch))
        seconds = time.perf_counter() - begun
    return count / seconds


def main() -> None:
    """Print the images per second."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.encoded_feeding", description=__doc__)
    parser.add_argument("--cpus", type=int, default=2, help="CPUs for the tasks (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=4250, help="pictures (default: %(default)s)")
    given = parser.parse_args()
    os.environ.pop("RAY_ADDRESS", None)
    with tempfile.TemporaryDirectory(prefix="encoded-") as folder:
        uri = write(folder, rows=given.rows)
        ray.init(num_cpus=given.cpus + 1, include_dashboard=False, logging_level="ERROR")
        ray.data.DataContext.get_current().enable_progress_bars = False
        print("images/s", rate(uri))
        ray.shutdown()


if __name__ == "__main__":
    main()
