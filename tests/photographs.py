"""Jobs that make datasets from a folder of photographs and train on them, without Prefect."""

import dataclasses
from typing import Any

from storage.uri import URI, CheckpointURI, DatasetURI, Root
from tasks.jobs.ingest import user_files
from tasks.jobs.spec import IngestSpec, PreprocessSpec, TrainSpec
from tasks.learning.recipes import Recipe
from tasks.planning import user_images

RECIPE = Recipe(
    name="photos",
    data="user-images",
    model="small-cnn",
    epochs=2,
    batch_size=8,
    seed=5,
    image_size=16,
    image_encoding="encoded",
    crop_scale=0.3,
    flip="horizontal",
    color_jitter=0.4,
    max_quarantined=0.5,
    precision="fp32",
)
"""Of encoded images of 16 x 16 pixels, with every augmentation."""


def to_make(root: Root, photos: URI, encoding: str) -> tuple[IngestSpec, PreprocessSpec]:
    """The jobs that make the raw and the prepared dataset of the photographs."""
    found = user_images.find(photos)
    parameters = {"data": "photos", "image_size": 16, "channels": 3}
    raw = IngestSpec(
        storage=root,
        deadline_s=60,
        source=photos,
        kind="images",
        classes=list(found.classes),
        digest=found.digest,
        parameters=parameters | ({} if encoding == "decoded" else {"image_encoding": encoding}),
        target=DatasetURI(root.child("datasets/raw/photos-0123456789ab")),
    )
    raw = raw.model_copy(update={"listing": user_files.write_listing(raw.scratch, found.files)})
    prepared = PreprocessSpec(
        storage=root,
        deadline_s=60,
        source=raw.target,
        target=DatasetURI(root.child("datasets/prepared/photos-0123456789ab")),
        parameters={"split_seed": 0, "validation_fraction": 0.2, "max_quarantined": 0.5},
    )
    return raw, prepared


def trains(root: Root, prepared: DatasetURI, name: str = "photos", **changes: Any) -> TrainSpec:
    """The job that trains on `prepared` in its own process, with `changes` of the recipe."""
    return TrainSpec(
        storage=root,
        deadline_s=60,
        source=prepared,
        target=CheckpointURI(root.child(f"checkpoints/{name}-0123456789ab")),
        recipe=dataclasses.replace(RECIPE, **changes),
        parameters={},
        workers=0,
        threads=1,
    )
