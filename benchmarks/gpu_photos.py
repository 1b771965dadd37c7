"""Lines of `benchmarks.gpu` beyond CIFAR-10: steps of all recipes, JPEG files, streaming, and a published script."""

import os
import runpy
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from storage import manifest, tables
from storage.kinds import CHECKPOINT
from storage.statistics import ModelSpec
from storage.uri import URI
from tasks.images import user_images
from tasks.learning import images, recipes
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Batch, Trainer, seed_everything
from tasks.learning.modeling import Classifier, resolve_precision, set_arithmetic
from tasks.learning.recipes import Recipe
from tasks.stages import Ingest, Preprocess, Train

if TYPE_CHECKING:
    from benchmarks.gpu import Bench

_STEPS, _RUNS = 60, 3
"""Steps of an epoch, and the epochs, of which the first one only warms up."""
_USERS = {"images-finetune": (128, 128, 3), "images-resnet18": (128, 128, 3), "mnist-resnet18": (28, 28, 1)}
"""Recipes and the shape of their images."""
_BATCH = 32
"""Rows of a step where the recipe leaves them to the number of rows."""
_JPEG = (500, 375)
_SEEDS = 3


def steps(bench: "Bench") -> Iterator[str]:
    """A step of the recipes for user images and MNIST, launched in every way, without a job around it."""
    from benchmarks.gpu import VARIANTS

    for name, shape in _USERS.items():
        for variant, changes in VARIANTS.items():
            if changes.get("step") == "graph" and bench.device.type != "cuda":
                continue
            rows = bench.recipe(name).finetuning.batch_size or _BATCH
            recipe = bench.recipe(name, **{"epochs": _RUNS, "batch_size": rows} | changes)
            trainer = _trainer(recipe, shape, device=bench.device, num_steps=_STEPS if bench.rows > 1000 else 2)
            seconds = [trainer.run_epoch(epoch).train_s for epoch in range(1, _RUNS + 1)]
            each = 1000 * statistics.median(seconds[1:]) / trainer.steps_per_epoch
            yield f"{name}: step, {variant}: {each / 1000:.5f} s ({each:.2f} ms; first epoch {seconds[0]:.1f} s)"


def _trainer(recipe: Recipe, shape: tuple[int, int, int], *, device: torch.device, num_steps: int) -> Trainer:
    classes, seed, channels = tuple("0123456789"), recipe.finetuning.seed, shape[2]

    def rows(count: int) -> Batch:
        return torch.randint(0, 256, (count, *shape), dtype=torch.uint8), torch.arange(count) % len(classes)

    seed_everything(seed)
    spec = ModelSpec(
        model=recipe.model, image_shape=shape, classes=classes, mean=(120.0,) * channels, std=(60.0,) * channels
    )
    model = Classifier(spec)
    precision = resolve_precision(recipe.finetuning.precision, device, model)
    set_arithmetic(precision, device)
    train = rows(num_steps * recipe.finetuning.batch_size)
    loader = ResidentLoader(train, rows(64), seed=seed, rank=0, device=device)
    return Trainer(recipe, model, loader, precision=precision, device=device, class_counts=[1] * len(classes))


def jpegs(bench: "Bench") -> Iterator[str]:
    """A fine-tuning from JPEG files of 500 x 375, decoded in every epoch to 224 pixels."""
    folder = Path(bench.root.child("photos"))
    _write_photos(folder, count=min(bench.rows // 4, 4000))
    finetuning = bench.recipe("images-finetune", epochs=3, batch_size=_BATCH, ensemble="none")
    recipe = recipes.override(finetuning, {"store": "files", "image_size": 224, "max_shift": 0})
    photos = user_images.find(URI(str(folder)))
    raw = bench.make(
        Ingest(
            listing=user_images.write(bench.root, photos), place=photos.uri, image_size=224, channels=3, store="files"
        )
    )
    prepared = bench.make(Preprocess(root=bench.root, raw=raw))
    checkpoint = bench.make(Train(root=bench.root, prepared=prepared, recipe=recipe, workers=0))
    history = manifest.load(checkpoint).statistics_of(CHECKPOINT).history
    rows = manifest.load(prepared).num_rows("train")
    seconds, waits = (
        statistics.median(getattr(epoch, name) for epoch in history[1:]) for name in ("train_s", "data_wait_s")
    )
    share = f"{waits / seconds:.0%} of it waiting for data, {os.cpu_count()} CPUs"
    yield f"images-finetune: JPEG files: {rows / seconds:,.0f} rows/s ({share})"


def _write_photos(folder: Path, *, count: int) -> None:
    """Write `count` JPEG files of smooth noise with grain, which take as long to decode as photos."""
    random = np.random.default_rng(0)
    small = [Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8)) for _ in range(20)]
    smooth = [np.asarray(image.resize(_JPEG, Image.Resampling.BICUBIC), np.int16) for image in small]
    pixels = [np.clip(image + random.integers(-20, 21, image.shape), 0, 255).astype(np.uint8) for image in smooth]
    for number in range(5):
        (folder / f"class-{number}").mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        moved = np.roll(pixels[number % 20], number // 20, axis=1)
        Image.fromarray(moved).save(folder / f"class-{number % 5}" / f"{number:05d}.jpg", quality=90)

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(count)))


def streaming(bench: "Bench") -> Iterator[str]:
    """An epoch of CIFAR-10's ResNet-18 with its rows in memory, and read again in each epoch."""
    for loader in ("resident", "streaming"):
        _, history = bench.train(bench.recipe("cifar10-resnet18", epochs=4, loader=loader))
        seconds, waits = (
            statistics.median(getattr(epoch, name) for epoch in history[2:]) for name in ("seconds", "data_wait_s")
        )
        yield f"cifar10-resnet18: job, one epoch, {loader}: {seconds:.4g} s (waits {waits:.2f} s for data)"


def published(bench: "Bench") -> Iterator[str]:
    """The published script on the same pixels: accuracy with its own augmentation in testing, and seconds."""
    if bench.published is None:
        yield "published script: 0 s (skipped: --published FILE names it)"
        return
    before, folder = os.getcwd(), Path(bench.root.child("published"))
    (folder / "cifar10").mkdir(parents=True)
    for split in ("train", "test"):
        pixels, labels = images.to_arrays(tables.read_split(bench.raw, split), (32, 32, 3))
        rows = {"images": torch.from_numpy(pixels.copy()), "labels": torch.from_numpy(np.array(labels)), "classes": []}
        torch.save(rows, folder / "cifar10" / f"{split}.pt")
    os.chdir(folder)
    try:
        main = runpy.run_path(str(bench.published.resolve()), run_name="published")["main"]
        for seed in range(_SEEDS):
            torch.manual_seed(seed)
            begun = time.perf_counter()
            accuracy = main(seed)
            yield f"published script, seed {seed}: {time.perf_counter() - begun:.1f} s (accuracy {accuracy:.2%})"
    finally:
        os.chdir(before)
