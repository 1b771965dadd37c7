"""What `--data` names: validation and other options that name committed results or the user's own images."""

import dataclasses
import re
from typing import Any

from storage import access, champions, kinds, manifest
from storage.admin import catalog
from storage.uri import URI, CheckpointURI, DatasetURI, FilesURI, Root, parse_root
from tasks.images import thumbnail_parts, user_images
from tasks.images.layout import EXPECTED
from tasks.images.user_images import UserImages
from tasks.learning import images, recipes, sources, user_code
from tasks.learning.recipes import Recipe
from tasks.learning.sources import Download, Source
from tasks.planning.result_uris import result_of

_IMAGE_SIZE = 64
"""Pixels per side of the user's images, unless the recipe or the pretrained weights say otherwise."""


def default_recipe(data: str | None, *, flow: str = "", storage: str = "./data") -> str:
    """Return the default recipe: `images-finetune` for the user's own images, else that of the data or of the flow.

    Args:
        data: The option `--data`, or the parameter of a deployment.
        flow: Name of the deployment's flow; empty on the command line, whose default is the bundled sample.
        storage: Storage root of a result that `data` names.
    """
    if flow == "images":
        return "images-finetune"
    usual = _recipe_of(flow) or "mnist-sample-resnet18"
    if not data or flow not in ("", "mnist"):
        return usual
    uri = DatasetURI(catalog.named(parse_root(storage), data, option="--data"))
    try:
        access.check_readable(uri, option="--data")
    except FileNotFoundError:
        return usual
    if manifest.is_committed(uri):
        parameters = check_committed("--data", uri, kinds=("raw",)).parameters
        if "image_size" not in parameters:
            return _recipe_of(str(parameters.get("data"))) or usual
    return "images-finetune"


def _recipe_of(source: str) -> str | None:
    name = f"{source}-resnet18"
    return name if name in recipes.known() else None


def check_committed(option: str, uri: CheckpointURI | DatasetURI, *, kinds: tuple[str, ...]) -> manifest.Manifest:
    """Load the manifest of `uri`; raise `ValueError` naming `option` if no result of these kinds is committed there."""
    try:
        access.check_readable(uri, option=option)
        dataset = manifest.load(uri)
    except FileNotFoundError:
        raise ValueError(
            f"{option}: nothing is committed at {uri}; use a result of `data-to-model ls`, or champion:NAME"
        ) from None
    except manifest.Damaged as error:
        raise ValueError(f"{option}: {error}") from None
    if not re.search(r"-[0-9a-f]{12}$", uri.name):  # later results are found by their parents' fingerprints
        raise ValueError(f"{option}: the name must end in '-' and a 12-digit hexadecimal fingerprint, got {uri}")
    if dataset.kind not in kinds:
        raise ValueError(f"{option} must be of kind {' or '.join(kinds)}, got {uri} of kind {dataset.kind}")
    return dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
    """What a run learns from: a source's files, the user's images, or an existing raw dataset."""

    recipe: Recipe
    """The requested recipe, with the settings that an existing raw dataset was made with."""
    name: str
    """Name of the source, or of the folder with the user's images."""
    default_model: str
    """Registered model to compete for, unless the user names another."""
    is_user_images: bool
    source: Source | None = None
    user_images: UserImages | None = None
    raw: DatasetURI | None = None
    """An existing raw dataset."""

    def ingest_values(self) -> dict[str, Any]:
        """Return the values that the raw dataset records."""
        values: dict[str, Any] = {"data": self.name}
        if self.user_images is not None:
            values |= {"ingest": user_images.VERSION, **self.recipe.ingest_parameters()}
            if self.user_images.test_fraction is not None:
                values["test_fraction"] = self.user_images.test_fraction
                if self.recipe.split.group != "none":
                    values["group"] = self.recipe.split.group
        return values

    def find_raw(self, root: Root, *, refresh: int) -> DatasetURI:
        """Return the URI of the raw dataset, named after what it is made from."""
        if self.raw is not None:
            return self.raw
        if self.user_images is not None:
            made_from = self.ingest_values() | {"files": self.user_images.digest}
        else:
            assert self.source is not None
            made_from = _checksums(self.source)
            if user_code.is_reference(self.recipe.data.source):  # the user's own code reads the files
                made_from["code"] = self.recipe.data.source
        return result_of(kinds.RAW, root, name=self.name, parameters=made_from | {"refresh": refresh})

    def find_files(self, root: Root, raw: DatasetURI, *, refresh: int) -> FilesURI | None:
        """Return the URI of the downloaded files; None if they are gone or damaged but the raw dataset exists."""
        if self.source is None:
            return None
        files = find_files(root, self.source, refresh=refresh)
        return files if is_needed(files, child=raw) else None

    def images(self, raw: DatasetURI) -> tuple[tuple[int, int, int] | None, tuple[str, ...] | None]:
        """Return shape and classes of the images; None where they are unknown until the data is read."""
        if self.source is not None:
            return self.source.image_shape, self.source.classes
        if self.user_images is not None and (self.user_images.classes or not manifest.is_committed(raw)):
            size = self.recipe.data.image_size
            return (size, size, self.recipe.data.channels), self.user_images.classes or None
        metadata = manifest.load(raw).columns["metadata"]
        return images.shape_of(metadata), images.classes_of(metadata)


def find_files(root: Root, download: Download, **more: Any) -> FilesURI:
    """Return the URI of the downloaded files, named after their checksums."""
    return result_of(kinds.FILES, root, name=download.name, parameters=_checksums(download) | more)


def is_needed(files: FilesURI, *, child: URI) -> bool:
    """Return whether downloaded files are there, or must be, because `child`, the result made of them, is not."""
    try:
        return not manifest.is_committed(child) or manifest.find(files) is not None
    except manifest.Damaged:
        return False


def _checksums(source: Download) -> dict[str, Any]:
    return {"data": source.name, "sha256": {file.name: file.sha256 for file in source.files}}


def find_training_data(root: Root, recipe: Recipe, data: str | None) -> TrainingData:
    """Return what `recipe` learns from: `data`, or the recipe's source; raise `ValueError` if they do not fit."""
    if not data:
        source = sources.load(recipe.data.source)
        _check_shift(recipe, side=min(source.image_shape[:2]))
        return TrainingData(
            recipe=recipe, name=source.name, default_model=source.name, is_user_images=False, source=source
        )
    uri = DatasetURI(catalog.named(root, data, option="--data"))
    try:
        access.check_readable(uri, option="--data")
    except FileNotFoundError:
        expected = f"{EXPECTED}, or the URI of a raw dataset"
        raise user_images.nothing_at(uri, option="--data", expected=expected) from None
    return _raw_dataset(uri, recipe) if manifest.is_committed(uri) else _user_images(root, uri, recipe)


def _user_images(root: Root, uri: DatasetURI, recipe: Recipe) -> TrainingData:
    if not recipe.data.image_size:
        from tasks.learning import pretrained  # torch, which other requests do without

        is_pretrained = recipe.training.start.kind == "pretrained"
        size = pretrained.published(recipe.model).input_size[-1] if is_pretrained else _IMAGE_SIZE
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, image_size=size))
    _check_shift(recipe, side=recipe.data.image_size)
    are_grouped = recipe.split.group != "none"
    listed = user_images.find(URI(uri), test_fraction=recipe.data.test_fraction, are_grouped=are_grouped)
    if listed.kind == "parquet" and recipe.data.store == images.FILES:
        raise ValueError(
            f"store must be pixels for Parquet files, got 'files' for {uri}; use --set store=pixels "
            "without crop_scale and color_jitter, or give the images as files"
        )
    user_images.check_apart(root, listed.uri, option="--data")
    model = champions.default_for_user_images(listed.name, listed.uri)
    return TrainingData(recipe=recipe, name=listed.name, default_model=model, is_user_images=True, user_images=listed)


def _raw_dataset(uri: DatasetURI, recipe: Recipe) -> TrainingData:
    raw = check_committed("--data", uri, kinds=("raw",))
    source, name = recipe.data.source, raw.parameters.get("data")
    if name != sources.name_of(source) and (source != sources.USER_IMAGES or name is None):
        raise ValueError(f"--data must be of data set {source!r}, got {uri} of {name!r}; choose another --recipe")
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
    if recipe.split.group != "none" and not thumbnail_parts.entries(raw):
        raise ValueError(
            f"group={recipe.split.group} needs the thumbnails of user images, which --data {uri} does not have; give "
            "the folder of the images themselves, or use --set group=none"
        )
    # What the dataset was made with cannot be changed any more.
    fixed = {
        field: raw.parameters[field] for field in ("image_size", "channels", "test_fraction") if field in raw.parameters
    }
    usual = recipes.load(recipe.name) if recipe.name in recipes.known() else recipe
    for field, value in fixed.items():
        if (requested := getattr(recipe.data, field)) not in (value, getattr(usual.data, field)):
            raise ValueError(
                f"--set: {field} is {value} in --data {uri}, got {requested}; omit it, or give the folder of the "
                "images themselves"
            )
    return TrainingData(
        recipe=dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **fixed)),
        name=str(name),
        default_model=champions.default_of_raw(raw),
        is_user_images=source == sources.USER_IMAGES,
        raw=uri,
    )


def _check_shift(recipe: Recipe, *, side: int) -> None:
    """Raise `ValueError` if augmentation could shift an image completely out of view; `side` is in pixels."""
    max_shift, source = recipe.training.augment.max_shift, recipe.data.source
    if max_shift >= side:
        raise ValueError(f"max_shift must be < {side}, the side of the images of {source}, got {max_shift}")
