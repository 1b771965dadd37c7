"""What `--data` names: validation and other options that name committed results or the user's own images."""

import dataclasses
from typing import Any

from storage import access, champions, manifest
from storage.admin import catalog
from storage.kinds import DatasetURI, EmbeddingsURI, FilesURI
from storage.uri import URI, ListingURI, Root
from tasks.images import user_images
from tasks.images.layout import EXPECTED, below_class
from tasks.images.user_images import UserImages
from tasks.learning import images, recipes, sources
from tasks.learning.recipes import Data, Recipe
from tasks.learning.sources import Source
from tasks.stages import Ingest

_IMAGE_SIZE = 64
"""Pixels per side of the user's images, unless the recipe or the pretrained weights say otherwise."""


def default_recipe(data: str | None, *, flow: str = "") -> str:
    """Return the default recipe: `images-finetune` if there is an option `--data`, else that of the deployment's flow.

    `flow` is empty on the command line, whose default is the bundled sample; `mnist` takes images, too.
    """
    if flow == "images" or (data and flow in ("", "mnist")):
        return "images-finetune"
    name = f"{flow}-resnet18"
    return name if name in recipes.known() else "mnist-sample-resnet18"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
    """What a run learns from: a source's files, the user's images, or an existing raw dataset."""

    recipe: Recipe
    """The requested recipe, with the settings that an existing raw dataset was made with."""
    default_model: str
    """Registered model to compete for, unless the user names another."""
    source: Source | None = None
    user_images: UserImages | None = None
    raw: DatasetURI | None = None
    """An existing raw dataset."""

    @property
    def place(self) -> URI | None:
        return self.user_images.uri if self.user_images else self.raw


def ingest_stage(
    files: FilesURI | ListingURI,
    data: Data,
    *,
    group: str = "none",
    embeddings: EmbeddingsURI | None = None,
    refresh: int = 0,
) -> Ingest:
    """Return the stage that makes a raw dataset of `files`: a download, or a list of the user's own."""
    if not isinstance(files, ListingURI):
        return Ingest(files=files, source=data.source, refresh=refresh)
    images = user_images.read(files)
    fields: dict[str, Any] = {
        name: getattr(data, name) for name in ("image_size", "channels", "store", "max_megapixels")
    }
    if images.test_fraction is not None:
        fields |= {"test_fraction": images.test_fraction, "group": group, "embeddings": embeddings}
    return Ingest(listing=files, place=images.uri, is_new=images.is_new, refresh=refresh, **fields)


def images_of(ingest: Ingest | None, raw: DatasetURI) -> tuple[tuple[int, int, int] | None, tuple[str, ...] | None]:
    """Return shape and classes of the images of a run; None where they are unknown until the data is read."""
    if ingest and ingest.files:
        source = sources.load(ingest.source)
        return source.image_shape, source.classes
    classes = user_images.read(ingest.listing).classes if ingest and ingest.listing else ()
    if ingest and (classes or not manifest.is_committed(raw)):
        return (ingest.image_size, ingest.image_size, ingest.channels), classes or None
    metadata = manifest.load(raw).columns["metadata"]
    return images.shape_of(metadata), images.classes_of(metadata)


def is_needed(files: FilesURI, *, child: URI) -> bool:
    """Return whether downloaded files are there, or must be, because `child`, the result made of them, is not."""
    try:
        return not manifest.is_committed(child) or manifest.find(files) is not None
    except manifest.Damaged:
        return False


def find_training_data(root: Root, recipe: Recipe, data: str | None, *, labels: str | None = None) -> TrainingData:
    """Return what `recipe` learns from: `data`, or the recipe's source; raise `ValueError` if they do not fit."""
    if labels and (not data or manifest.is_committed(DatasetURI(catalog.named(root, data, option="--data")))):
        raise ValueError(f"--labels needs --data with a folder of images, got {labels} with {data or 'no --data'}")
    if not data:
        source = sources.load(recipe.data.source)
        _check_shift(recipe, side=min(source.image_shape[:2]))
        return TrainingData(recipe=recipe, default_model=source.name, source=source)
    uri = DatasetURI(catalog.named(root, data, option="--data"))
    try:
        access.check_readable(uri, option="--data")
    except FileNotFoundError:
        expected = f"{EXPECTED}, or the URI of a raw dataset"
        raise user_images.nothing_at(uri, expected=expected) from None
    return _raw_dataset(uri, recipe) if manifest.is_committed(uri) else _user_images(root, uri, recipe, labels)


def _user_images(root: Root, uri: DatasetURI, recipe: Recipe, labels: str | None) -> TrainingData:
    if not recipe.data.image_size:
        from tasks.learning import pretrained  # torch, which other requests do without

        is_pretrained = recipe.training.start.kind == "pretrained"
        size = pretrained.published(recipe.model).input_size[-1] if is_pretrained else _IMAGE_SIZE
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, image_size=size))
    _check_shift(recipe, side=recipe.data.image_size)
    are_grouped = recipe.split.group != "none"
    fraction = recipe.data.test_fraction
    listed = user_images.find(URI(uri), test_fraction=fraction, are_grouped=are_grouped, labels_from=labels)
    if listed.kind == "parquet" and recipe.data.store == images.FILES:
        raise ValueError(
            f"store must be pixels for Parquet files, got 'files' for {uri}; use --set store=pixels "
            "without crop_scale and color_jitter, or give the images as files"
        )
    _check_compared(recipe, len(listed.files))
    folders = (below_class(file.path, listed.classes[file.label]) for file in listed.files if file.label is not None)
    if recipe.split.group == "folder" and not any(folders):
        raise ValueError(
            f"group=folder needs folders below the class folders, such as cat/monday/1.jpg, but {uri} has none; make "
            "them, or use --set group=near-duplicates"
        )
    user_images.check_apart(root, listed.uri)
    model = champions.default_for_user_images(listed.name, listed.uri)
    return TrainingData(recipe=recipe, default_model=model, user_images=listed)


def _raw_dataset(uri: DatasetURI, recipe: Recipe) -> TrainingData:
    raw = catalog.committed(uri, option="--data", kinds=("raw",))
    source, name = recipe.data.source, uri.stem
    if name != sources.name_of(source) and (source != sources.USER_IMAGES or "listing" not in raw.parameters):
        raise ValueError(f"--data must be of source {source!r}, got {uri} of {name!r}; choose another --recipe")
    metadata = raw.columns["metadata"]
    _check_shift(recipe, side=min(images.shape_of(metadata)[:2]))
    store = images.store_of(metadata)
    if store != recipe.data.store:
        raise ValueError(
            f"store must be {store}, as in --data {uri}, got {recipe.data.store!r}; use --set "
            f"store={store}, or give the folder of the images themselves"
        )
    splits = dict.fromkeys(file.split for file in raw.files if file.split and file.rows)
    if not {"train", "test"} <= splits.keys():  # such as user images that batch prediction stored
        raise ValueError(
            f"--data must have rows in train and test, got {uri} with rows in {', '.join(splits) or 'no split'}; give "
            "the folder of the training images, or a raw dataset made from it"
        )
    # What the dataset was made with cannot be changed any more.
    fixed: dict[str, Any] = {}
    if "listing" in raw.parameters:
        size, _, channels = images.shape_of(metadata)
        fraction = {name: raw.parameters[name] for name in ("test_fraction",) if name in raw.parameters}
        fixed = {"image_size": size, "channels": channels, **fraction}
    usual = recipes.load(recipe.origin) if recipe.origin else recipe
    for field, value in fixed.items():
        if (requested := getattr(recipe.data, field)) not in (value, getattr(usual.data, field)):
            raise ValueError(
                f"--set: {field} is {value} in --data {uri}, got {requested}; omit it, or give the folder of the "
                "images themselves"
            )
    split = dataclasses.replace(recipe.split, group=_group_of(uri, raw, recipe))
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **fixed), split=split)
    _check_compared(recipe, raw.num_rows("train", "test"))
    return TrainingData(
        recipe=recipe,
        default_model=champions.default_of_raw(uri, raw),
        raw=uri,
    )


def _group_of(uri: DatasetURI, raw: manifest.Manifest, recipe: Recipe) -> Any:
    """Return the group that an existing raw dataset was made with if it decided the test rows, else the requested."""
    requested, own = recipe.split.group, raw.parameters.get("group", "none")
    if "test_fraction" not in raw.parameters and requested != "folder":
        return requested
    if requested not in (own, "none"):
        raise ValueError(
            f"--set: group is {own} in --data {uri}, got {requested}; give the folder of the images themselves"
        )
    return own


def _check_compared(recipe: Recipe, count: int) -> None:
    """Raise `ValueError` if these are too many images to look for near duplicates among them, as requested."""
    if recipe.split.group == "near-duplicates" and count > images.MOST_COMPARED:
        raise ValueError(images.TOO_MANY)


def _check_shift(recipe: Recipe, *, side: int) -> None:
    """Raise `ValueError` if augmentation could shift an image completely out of view; `side` is in pixels."""
    if recipe.training.kind == "probe":
        return
    max_shift, source = recipe.training.augment.max_shift, recipe.data.source
    if max_shift >= side:
        raise ValueError(f"max_shift must be < {side}, the side of the images of {source}, got {max_shift}")
