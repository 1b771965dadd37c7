"""Validation of `--data` and other options that name committed results or the user's own images."""

import dataclasses
import re

from storage import access, manifest
from storage.uri import URI, CheckpointURI, DatasetURI, parse_root
from tasks.learning import images, recipes, sources
from tasks.learning.recipes import Recipe
from tasks.planning import user_images
from tasks.planning.user_images import UserImages
from tasks.planning.user_images.layout import EXPECTED


def default_recipe(data: str | None, *, flow: str = "mnist") -> str:
    """Return the default recipe: `images-resnet18` for the user's own images, else `mnist-resnet18`.

    Args:
        data: The option `--data`, or the parameter of a deployment.
        flow: Name of the flow; one that is named after a data set, other than `mnist`, has the recipe of that data set.
    """
    if flow != "mnist" and f"{flow}-resnet18" in recipes.known():
        return f"{flow}-resnet18"
    if not data:
        return "mnist-resnet18"
    uri = DatasetURI(parse_root(data, option="--data"))
    try:
        access.check_readable(uri, option="--data")
    except FileNotFoundError:
        return "mnist-resnet18"
    if manifest.is_committed(uri) and "image_size" not in check_committed("--data", uri, kinds=("raw",)).parameters:
        return "mnist-resnet18"
    return "images-resnet18"


def check_committed(option: str, uri: CheckpointURI | DatasetURI, *, kinds: tuple[str, ...]) -> manifest.Manifest:
    """Load the manifest of `uri`; raise `ValueError` naming `option` if no result of these kinds is committed there."""
    try:
        access.check_readable(uri, option=option)
        made = manifest.load(uri)
    except FileNotFoundError:
        raise ValueError(f"{option}: nothing is committed at {uri}; use a URI that a run printed") from None
    except manifest.Damaged as error:
        raise ValueError(f"{option}: {error}") from None
    if not re.search(r"-[0-9a-f]{12}$", uri.name):  # later results are found by their parents' fingerprints
        raise ValueError(f"{option}: the name must end in '-' and a 12-digit hexadecimal fingerprint, got {uri}")
    if made.kind not in kinds:
        raise ValueError(f"{option} must be of kind {' or '.join(kinds)}, got {uri} of kind {made.kind}")
    return made


def resolve_data(data: str, recipe: Recipe) -> DatasetURI | UserImages:
    """Return the raw dataset or the user's own images at `data`; raise `ValueError` if they do not fit the recipe."""
    uri = DatasetURI(parse_root(data, option="--data"))
    try:
        access.check_readable(uri, option="--data")
    except FileNotFoundError:
        expected = f"{EXPECTED}, or the URI of a raw dataset"
        raise user_images.nothing_at(uri, option="--data", expected=expected) from None
    if not manifest.is_committed(uri):
        image_size, max_shift = recipe.data.image_size, recipe.training.augment.max_shift
        if max_shift >= image_size:
            raise ValueError(
                f"image_size must be more than max_shift, the pixels by which augmentation moves images: got "
                f"{image_size} and {max_shift}; change --set image_size or --set max_shift"
            )
        found_own = user_images.find(URI(uri), test_fraction=recipe.data.test_fraction)
        if found_own.kind == "parquet" and recipe.data.store == images.FILES:
            raise ValueError(
                f"store must be pixels for Parquet files, got 'files' for {uri}; use --set store=pixels "
                "without crop_scale and color_jitter, or give the images as files"
            )
        return found_own
    made = check_committed("--data", uri, kinds=("raw",))
    found = made.parameters.get("data")
    if found != sources.name_of(recipe.data.source) and (recipe.data.source != sources.USER_IMAGES or found is None):
        raise ValueError(
            f"--data must be of data set {recipe.data.source!r}, got {uri} of {found!r}; choose another --recipe"
        )
    check_shift(recipe, side=min(images.shape_of(made.columns["metadata"])[:2]))
    store = images.store_of(made.columns["metadata"])
    if store != recipe.data.store:
        raise ValueError(
            f"store must be {store}, as in --data {uri}, got {recipe.data.store!r}; use --set "
            f"store={store}, or give the folder of the images themselves"
        )
    splits = dict.fromkeys(file.split for file in made.files if file.split and file.rows)
    if not {"train", "test"} <= splits.keys():  # such as new pictures that batch prediction stored
        raise ValueError(
            f"--data must have rows in train and test, got {uri} with rows in {', '.join(splits) or 'no split'}; give "
            "the folder of the training images, or a raw dataset made from it"
        )
    return uri


def as_made(recipe: Recipe, uri: DatasetURI) -> Recipe:
    """Return `recipe` with the settings that the raw dataset at `uri` was made with, which nothing can change any more.

    Raises `ValueError` if one was set to another value.
    """
    made = manifest.load(uri).parameters
    fixed = {name: made[name] for name in ("image_size", "channels", "test_fraction") if name in made}
    usual = recipes.load(recipe.name) if recipe.name in recipes.known() else recipe
    for name, value in fixed.items():
        if (asked := getattr(recipe.data, name)) not in (value, getattr(usual.data, name)):
            raise ValueError(
                f"--set: {name} is {value} in --data {uri}, got {asked}; omit it, or give the folder of the images "
                "themselves"
            )
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **fixed))


def check_shift(recipe: Recipe, *, side: int) -> None:
    """Raise `ValueError` if augmentation could shift an image completely out of view; `side` is in pixels."""
    max_shift, source = recipe.training.augment.max_shift, recipe.data.source
    if max_shift >= side:
        raise ValueError(f"max_shift must be < {side}, the side of the images of {source}, got {max_shift}")
