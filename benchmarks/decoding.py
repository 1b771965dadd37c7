"""How fast are JPEG files decoded beside plain Pillow, on one core and on more?

`python -m benchmarks.decoding FOLDER [--size N] [--rounds N] [--cores N]` decodes the photos of FOLDER, at any depth,
as whole images and as random crops. Pillow does it in a loop; the training's decoder, without Ray, in 1 to N threads.
The two take turns. Each line has two numbers: the images per second of the fastest round, and the images per second of
processor time as a share of Pillow's (the median of all rounds), because other work on the machine changes processor
time less. Pillow decodes whole images at a reduced scale, too. It decodes crops in full.
"""

import argparse
import io
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from PIL import Image, ImageOps

from storage import process
from tasks.learning import images, recipes
from tasks.learning.transforms import Transform, crop

_SHARE = 0.3
"""Smallest share of an image that a crop keeps."""


def _whole(contents: list[bytes], size: int) -> None:
    for content in contents:
        image = Image.open(io.BytesIO(content))
        image.draft("RGB", (2 * size, 2 * size))
        upright = ImageOps.exif_transpose(image).convert("RGB")
        np.asarray(ImageOps.fit(upright, (size, size), method=Image.Resampling.BILINEAR))


def _crops(contents: list[bytes], size: int) -> None:
    random = np.random.default_rng(0)
    for content in contents:
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
        top, left, height, width = crop(image.height, image.width, smallest=_SHARE, random=random)
        box = (left, top, left + width, top + height)
        np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


def _in_threads(table: pa.Table, transform: Transform, epoch: int | None, threads: int) -> None:
    for _ in images.in_pieces(partial(transform, epoch=epoch), [table], threads=threads):
        pass


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds that `work` takes, and those of processor time."""
    started = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started[0], time.process_time() - started[1]


def measure(contents: list[bytes], *, size: int, rounds: int, cores: int) -> None:
    """Print the table."""
    process.keep_memory()  # as the training does
    table = pa.table({"id": range(len(contents)), "image": contents, "label": [0] * len(contents)})
    changes = {"store": "files", "image_size": size, "crop_scale": _SHARE, "flip": "none"}
    transform = Transform(recipes.override(recipes.load("images-finetune"), changes), (size, size, 3))
    print("| images | decoded by | images/s | of Pillow's per core |\n|---|---|---:|---:|")
    for name, plain, epoch in (("whole", _whole, None), ("crops", _crops, 1)):
        kinds: dict[str, Callable[[], None]] = {"Pillow": partial(plain, contents, size)}
        for threads in range(1, cores + 1):
            kinds[f"threads: {threads}"] = partial(_in_threads, table, transform, epoch, threads)
        taken = [{kind: _timed(work) for kind, work in kinds.items()} for _ in range(rounds)]
        for kind in kinds:
            fastest = min(each[kind][0] for each in taken)
            share = median(each["Pillow"][1] / each[kind][1] for each in taken)
            print(f"| {name} | {kind} | {len(contents) / fastest:,.0f} | {share:.2f} |", flush=True)


def main() -> None:
    """Read the photos and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoding", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=128, help="pixels of a side of the result")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    contents = [path.read_bytes() for path in sorted(options.folder.rglob("*.jp*g"))]
    measure(contents, size=options.size, rounds=options.rounds, cores=options.cores)


if __name__ == "__main__":
    main()
