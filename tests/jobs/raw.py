"""Raw datasets of a few small images, and recipes for them."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage import tables
from storage.kinds import CheckpointURI, DatasetURI
from storage.uri import URI, Root
from tasks.images import user_images
from tasks.images.user_images import UserImages
from tasks.jobs.spec import JobSpec
from tasks.jobs.train.make_loader import RankContext
from tasks.learning import images, loop, recipes
from tasks.learning.recipes import Data, Recipe, Split, Training
from tasks.resources.needs import Limits
from tasks.runners.runner import InProcessRunner
from tasks.stages import Ingest, Predict, Preprocess, Stage, Train
from tests import committed

CLASSES = ("dark", "light", "striped")
SPLIT = Split(validation_fraction=0.25, max_quarantined=0.1)


def write(root: Root, *, shape: tuple[int, int, int], train: int, test: int, parts: int = 3) -> DatasetURI:
    """A raw dataset of noisy images that can be told apart, some of whose training rows have no label."""
    random = np.random.default_rng(0)
    uri = DatasetURI(root.child("datasets/raw/small-0123456789ab"))
    listed = []
    for split, count in (("train", train), ("test", test)):
        labels = np.arange(count) % len(CLASSES)
        pixels = random.integers(0, 120, (count, *shape), dtype=np.uint8)
        pixels[labels == 1] += 60
        pixels[labels == 2, ::2] += 100
        table = images.to_table(np.arange(count), pixels, labels, classes=CLASSES)
        if split == "train":
            label = [None if row in (3, 40) else int(value) for row, value in enumerate(labels)]
            table = table.set_column(2, table.schema.field("label"), [label])
        bounds = np.linspace(0, count, parts + 1).astype(int)
        for index, (start, stop) in enumerate(itertools.pairwise(bounds)):
            listed.append(tables.write_part(uri, table.slice(start, stop - start), split=split, index=index))
    schema = tables.describe(images.schema(shape, CLASSES))
    committed.commit(uri, "raw", listed, schema=schema)
    return uri


def write_prepared(
    folder: Path, shape: tuple[int, int, int], splits: Mapping[str, Iterable[tuple[np.ndarray, np.ndarray]]]
) -> DatasetURI:
    """A prepared dataset of parts, each given by the numbers of its rows, which are also their labels, and pixels."""
    uri = DatasetURI(str(folder / "datasets/prepared/rows-0123456789ab"))
    listed = [
        tables.write_part(uri, images.to_table(ids, pixels, ids, classes=CLASSES), split=split, index=index)
        for split, parts in splits.items()
        for index, (ids, pixels) in enumerate(parts)
    ]
    schema = tables.describe(images.schema(shape, CLASSES))
    committed.commit(uri, "prepared", listed, schema=schema)
    return uri


def to_ingest(root: Root, folder: URI, **fields: Any) -> Ingest:
    """The stage that makes a raw dataset of images of 8 x 8 pixels of the user's files in `folder`."""
    return list_files(root, user_images.find(folder), **fields)


def list_files(root: Root, images: UserImages, **fields: Any) -> Ingest:
    """The stage that makes a raw dataset of images of 8 x 8 pixels, with other `fields`."""
    listing, usual = user_images.write(root, images), {"image_size": 8, "channels": 3}
    return Ingest(listing=listing, place=images.uri, **usual | fields)


def to_prepare(root: Root, raw: DatasetURI, **fields: Any) -> Preprocess:
    """The stage that prepares `raw`, with other values of the split than SPLIT."""
    return Preprocess(root=root, raw=raw, split=dataclasses.replace(SPLIT, **fields))


def recipe(name: str = "rows", **changes: Any) -> Recipe:
    """A recipe with `changes` of its fields, by their names alone."""
    usual = Recipe(name=name, data=Data(source="mnist"), model="small-cnn", training=Training(epochs=1))
    return recipes.override(usual, changes)


def to_train(root: Root, prepared: DatasetURI, *, name: str = "model", **changes: Any) -> Train:
    """The stage that trains the small model on `prepared`, in fp32, with `changes` of the recipe."""
    usual: dict[str, Any] = {"model": "small", "epochs": 3, "batch_size": 16, "precision": "fp32", "max_shift": 1}
    return Train(root=root, prepared=prepared, recipe=recipe(name, **{**usual, **changes}), workers=0)


def to_predict(root: Root, model: CheckpointURI, dataset: DatasetURI) -> Predict:
    """The stage that predicts every row of `dataset`."""
    return Predict(root=root, checkpoint=model, dataset=dataset)


def reader(loader: str, **about: Any) -> RankContext:
    """The only rank, on the CPU, with batches as they come from the DataLoader; `about` has what differs."""
    usual: dict[str, Any] = {"rank": 0, "world_size": 1, "device": torch.device("cpu"), "threads": 1}
    usual |= {"prepare": iter, "report": lambda folder, history: None, "checkpoint_s": 0}
    return RankContext(loader=loader, **usual | about)


def run(stage: Stage[Any], *, checkpoint_s: float = 0) -> None:
    """Do here what the job of `stage` would do."""
    InProcessRunner().run(JobSpec(stage=stage, limits=Limits(checkpoint_s=checkpoint_s)))


def train(stage: Train, *, cut: int | None = None, checkpoint_s: float = 0) -> list[int]:
    """Do a training, which is interrupted as the epoch `cut` begins; return the epochs that it trained."""
    epochs, run_epoch = list[int](), loop.Trainer.run_epoch

    def recorded(trainer: loop.Trainer, epoch: int, **how: Any) -> Any:
        if epoch == cut:
            raise KeyboardInterrupt
        epochs.append(epoch)
        return run_epoch(trainer, epoch, **how)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt) if cut else contextlib.nullcontext():
        patch.setattr(loop.Trainer, "run_epoch", recorded)
        run(stage, checkpoint_s=checkpoint_s)
    return epochs
