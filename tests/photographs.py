"""Jobs that make datasets from a folder of photographs and train on them, without Prefect."""

import dataclasses
from typing import Any

from storage.kinds import DatasetURI
from storage.uri import URI, Root
from tasks.learning import recipes
from tasks.learning.recipes import Data, FileAugment, Recipe, Split, Training
from tasks.stages import Ingest, Preprocess, Train
from tests.jobs.raw import to_ingest, to_prepare

RECIPE = Recipe(
    name="photos",
    data=Data(source="user-images", image_size=16, store="files"),
    split=Split(max_quarantined=0.5),
    model="small-cnn",
    training=Training(
        epochs=2,
        batch_size=8,
        augment=FileAugment(crop_scale=0.3, flip="horizontal", color_jitter=0.4),
        precision="fp32",
        seed=5,
    ),
)
"""Of files, as images of 16 x 16 pixels, with every augmentation."""


def to_make(root: Root, photos: URI, store: str) -> tuple[Ingest, Preprocess]:
    """The stages that make the raw and the prepared dataset of the photographs."""
    raw = to_ingest(root, photos, image_size=16, store=store)
    return raw, to_prepare(root, raw.target, validation_fraction=0.2, max_quarantined=0.5)


def trains(root: Root, prepared: DatasetURI, name: str = "photos", **changes: Any) -> Train:
    """The stage that trains on `prepared` in its own process, with `changes` of the recipe."""
    recipe = dataclasses.replace(recipes.override(RECIPE, changes), name=name)
    return Train(root=root, prepared=prepared, recipe=recipe, workers=0)
