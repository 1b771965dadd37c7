"""Checks of the champion before a run: is it comparable on this data, and can training start from its weights?"""

from collections.abc import Mapping
from typing import Any

from storage import manifest, registry
from storage.manifest import Damaged
from storage.uri import CheckpointURI, DatasetURI, Root
from tasks.learning.recipes import Recipe

_OPTION = "--set start=champion"
_SHOWN = 10  # class names in an error, at most


def initial_checkpoint(
    root: Root,
    registered_model: str,
    recipe: Recipe,
    prepared: DatasetURI,
    values: Mapping[str, Any],
    *,
    image_shape: tuple[int, ...] | None,
    classes: tuple[str, ...] | None,
) -> CheckpointURI:
    """Return the champion to start from, or that champion's own initial checkpoint if this request produced it.

    So the same request keeps its URIs after its model became champion. Raises `ValueError` if there is no champion, or
    if its model, images, classes or split differ: rows that it was trained on would become validation rows.
    """
    champion = registry.champion(root, registered_model)
    if champion is None:
        raise ValueError(f"{_OPTION}: {root} has no champion of {registered_model!r} yet; omit it the first time")
    try:
        trained = manifest.load(champion)
    except FileNotFoundError:
        raise ValueError(
            f"{_OPTION}: the champion {champion} does not exist any more; omit it, or restore the champion"
        ) from None
    before = trained.statistics["model"] | trained.statistics["split"]
    now = {"model": recipe.model, "image_shape": image_shape, "classes": classes, **split_of(recipe)}
    for name, value in now.items():
        value = list(value) if isinstance(value, tuple) else value
        if value is not None and before[name] != value:
            raise ValueError(
                f"{_OPTION}: {name} of the champion {champion} is {before[name]!r}, but {value!r} is requested; omit "
                "it to start from other weights"
            )
    is_same = "initial" in trained.parents and trained.parameters == values
    if is_same and trained.parent("prepared", of=champion).fingerprint == prepared.fingerprint:
        return CheckpointURI(trained.parent("initial", of=champion))
    return champion


def split_of(recipe: Recipe) -> dict[str, Any]:
    """Return what decides whether a row is a validation row, as prepared datasets and checkpoints record it."""
    split, store = recipe.split, recipe.data.store  # a row's split depends on its stored bytes
    return {"split_seed": split.split_seed, "validation_fraction": split.validation_fraction, "store": store}


def check_comparable(
    root: Root, registered_model: str, *, image_shape: tuple[int, ...] | None, classes: tuple[str, ...] | None
) -> None:
    """Raise `ValueError` if the champion cannot be evaluated on these images: other shape, or no class in common.

    Skips what is None, and a champion that does not exist. The gate leaves out test rows that it was trained on.
    """
    champion = registry.champion(root, registered_model)
    try:
        model = manifest.load(champion).statistics.get("model") if champion else None
    except (FileNotFoundError, ValueError, Damaged):  # the gate reports it
        return
    if model is None:
        return
    reason = ""
    if image_shape is not None and list(model["image_shape"]) != list(image_shape):
        expected, actual = (" x ".join(map(str, shape)) for shape in (model["image_shape"], image_shape))
        reason = f"expects images of {expected}, but this data has {actual}"
    elif classes is not None and not set(classes) & set(model["classes"]):
        expected, actual = (", ".join(list(names)[:_SHOWN]) for names in (model["classes"], classes))
        reason = f"knows none of the classes of this data: it knows {expected}, the data has {actual}"
    if reason:
        raise ValueError(
            f"--register-as: the champion of {registered_model!r}, {champion}, {reason}; choose another registered "
            "model for this data with --register-as NAME"
        )
