"""What `--data` and other options name: committed results, or images of one's own; refused early if neither."""

import contextlib
import re

from storage import files, manifest
from storage.uri import URI, CheckpointURI, DatasetURI, parse_root
from tasks import own
from tasks.learning import datasets, images
from tasks.learning.recipes import Recipe
from tasks.own import Own

_FINGERPRINTED = re.compile(r"-[0-9a-f]{12}$")
"""Results are found again by the fingerprints of what they were made from: a name without one could be anything's."""


def default_recipe(data: str | None) -> str:
    """The recipe for those who name none: `images-resnet18` for images of one's own, else `mnist-resnet18`.

    Raises `ValueError` for data that cannot be read.
    """
    if not data:
        return "mnist-resnet18"
    uri = DatasetURI(parse_root(data, option="--data"))
    try:
        files.check_readable(uri, option="--data")
    except FileNotFoundError:
        return "mnist-resnet18"
    is_own = (
        not files.exists(uri.child(manifest.NAME))
        or "image_size" in check_committed("--data", uri, kinds=("raw",)).parameters
    )
    return "images-resnet18" if is_own else "mnist-resnet18"


def check_committed(option: str, uri: CheckpointURI | DatasetURI, *, kinds: tuple[str, ...]) -> manifest.Manifest:
    """The manifest of `uri`; raises `ValueError` naming `option` when nothing of these kinds is committed there."""
    try:
        files.check_readable(uri, option=option)
        made = manifest.load(uri)
    except FileNotFoundError:
        raise ValueError(f"{option}: nothing is committed at {uri}; give the URI that a run printed") from None
    except manifest.Damaged as error:
        raise ValueError(f"{option}: {error}") from None
    if not _FINGERPRINTED.search(uri.name):
        raise ValueError(f"{option}: the name must end in '-' and a fingerprint of 12 digits of 0-9a-f, got {uri}")
    if made.kind not in kinds:
        raise ValueError(f"{option} must be of kind {' or '.join(kinds)}, got {uri} of kind {made.kind}")
    return made


def given(data: str, recipe: Recipe) -> DatasetURI | Own:
    """The raw dataset at `data`, once it is known to be one for the recipe, or the images of one's own there."""
    uri = DatasetURI(parse_root(data, option="--data"))
    is_own = False
    with contextlib.suppress(FileNotFoundError):
        files.check_readable(uri, option="--data")
        is_own = not files.exists(uri.child(manifest.NAME))
    if is_own:
        check_shift(recipe, side=recipe.image_size)
        return own.find(URI(uri))
    made = check_committed("--data", uri, kinds=("raw",))
    found = made.parameters.get("data")
    if found != datasets.name_of(recipe.data) and (recipe.data != datasets.OWN or found is None):
        raise ValueError(f"--data must be of data set {recipe.data!r}, got {uri} of {found!r}; choose another --recipe")
    check_shift(recipe, side=_side(made) or datasets.load(recipe.data).image_shape[0])
    return uri


def _side(raw: manifest.Manifest) -> int | None:
    """The shorter side of the images of a raw dataset, none when its manifest names no shape."""
    try:
        return min(images.shape_of(raw.columns["metadata"])[:2])
    except (KeyError, ValueError):
        return None


def check_shift(recipe: Recipe, *, side: int) -> None:
    """Raise `ValueError` when augmentation could move a whole image out of sight."""
    if recipe.max_shift >= side:
        raise ValueError(f"max_shift must be < {side}, the side of the images of {recipe.data}, got {recipe.max_shift}")
