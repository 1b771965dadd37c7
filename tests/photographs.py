"""Jobs that make datasets from a folder of photographs and train on them, without Prefect."""

from typing import Any

from storage.uri import URI, CheckpointURI, DatasetURI, Root
from tasks.learning import recipes
from tasks.learning.recipes import Data, FileAugment, Recipe, Split, Training
from tasks.stages import IngestSpec, PreprocessSpec, TrainSpec
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


def to_make(root: Root, photos: URI, store: str) -> tuple[IngestSpec, PreprocessSpec]:
    """The jobs that make the raw and the prepared dataset of the photographs."""
    raw = to_ingest(root, photos, image_size=16, **({} if store == "pixels" else {"store": store}))
    prepared = to_prepare(root, raw.target, "photos", validation_fraction=0.2, max_quarantined=0.5)
    return raw, prepared


def trains(root: Root, prepared: DatasetURI, name: str = "photos", **changes: Any) -> TrainSpec:
    """The job that trains on `prepared` in its own process, with `changes` of the recipe."""
    return TrainSpec(
        storage=root,
        deadline_s=60,
        source=prepared,
        target=CheckpointURI(root.child(f"checkpoints/{name}-0123456789ab")),
        recipe=recipes.override(RECIPE, changes),
        parameters={},
        workers=0,
        threads=1,
    )
