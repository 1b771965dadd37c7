"""Checks of the champion before a run: is it comparable on this data, and can training start from its weights?"""

import operator
from typing import TYPE_CHECKING, Any

from storage import manifest, registry
from storage.uri import URI, CheckpointURI
from tasks.learning import images, sources

if TYPE_CHECKING:
    from tasks.planning.plan import Plan

_ASKED = "--set start=champion"
_SHOWN = 10  # class names in an error, at most


def initial_checkpoint(plan: "Plan") -> CheckpointURI:
    """Return the champion to start from, or that champion's own initial checkpoint if this request produced it.

    So the same request keeps its URIs after its model became champion. Raises `ValueError` if there is no champion, if
    its model, images or classes differ, or if rows that it was trained on would become validation rows.
    """
    champion = registry.champion(plan.root, plan.registered_model)
    if champion is None:
        raise ValueError(
            f"{_ASKED}: {plan.root} has no champion of {plan.registered_model!r} yet; first run without it"
        )
    try:
        made = manifest.load(champion)
    except FileNotFoundError:
        raise ValueError(
            f"{_ASKED}: the champion {champion} does not exist any more; omit it, or restore the champion"
        ) from None
    _check_fits(plan, champion, made.statistics["model"])
    _check_split(plan, champion, made.statistics["split"])
    if "prepared" in made.parents:
        _check_encoding(plan, champion, made.parent("prepared", of=champion))
    if "initial" in made.parents:
        initial = CheckpointURI(made.parent("initial", of=champion))
        is_same_data = made.parent("prepared", of=champion).fingerprint == plan.prepared.fingerprint
        if is_same_data and made.parameters == plan.train_parameters | {"start": initial.fingerprint}:
            return initial
    return champion


def check_comparable(plan: "Plan") -> None:
    """Raise `ValueError` if the champion cannot be evaluated on this data.

    Reasons: another image shape, or no class in common. Skips what is only known once the data is read, and a champion
    that does not exist. The gate leaves out test rows that it was trained on.
    """
    champion = registry.champion(plan.root, plan.registered_model)
    try:
        about = manifest.load(champion).statistics if champion else {}
    except (FileNotFoundError, ValueError, manifest.Damaged):  # the gate reports it
        return
    model = about.get("model")
    if model is None:
        return
    now = known_images(plan)
    shape, classes = now["image_shape"], now["classes"]
    if shape is not None and list(model["image_shape"]) != shape:
        knows, has = (" x ".join(map(str, size)) for size in (model["image_shape"], shape))
        _refuse(plan, champion, f"expects images of {knows}, but this data has {has}")
    if classes is not None and not set(classes) & set(model["classes"]):
        knows, has = (", ".join(list(names)[:_SHOWN]) for names in (model["classes"], classes))
        _refuse(plan, champion, f"knows none of the classes of this data: it knows {knows}, the data has {has}")


def _refuse(plan: "Plan", champion: CheckpointURI | None, why: str) -> None:
    raise ValueError(
        f"--register-as: the champion of {plan.registered_model!r}, {champion}, {why}; choose another registered model "
        "for this data with --register-as NAME"
    )


def _check_fits(plan: "Plan", champion: CheckpointURI, model: dict[str, Any]) -> None:
    for name, value in ({"model": plan.recipe.model} | known_images(plan)).items():
        if value is not None and model[name] != value:
            raise ValueError(
                f"{_ASKED}: {name} of the champion {champion} is {model[name]!r}, but {value!r} is requested; omit "
                "it to start from random weights"
            )


def _check_split(plan: "Plan", champion: CheckpointURI, split: dict[str, Any]) -> None:
    # A smaller share of validation rows is harmless: some validation rows become training rows.
    leak = "rows that it was trained on would become validation rows"
    for name, leaks in (("split_seed", operator.ne), ("validation_fraction", operator.gt)):
        if leaks(now := getattr(plan.recipe.split, name), before := split[name]):
            raise ValueError(
                f"{_ASKED}: {name} of the champion {champion} is {before}, but {now} is requested: {leak}; use --set "
                f"{name}={before}, or omit start=champion"
            )


def _check_encoding(plan: "Plan", champion: CheckpointURI, prepared: URI) -> None:
    # A row's split is chosen by its stored bytes: pixels, or the bytes of the file.
    try:
        before = images.store_of(manifest.load(prepared).columns.get("metadata", {}))
    except FileNotFoundError:
        return
    if before != (now := plan.recipe.data.store):
        raise ValueError(
            f"{_ASKED}: store of the champion {champion} is {before!r}, but {now!r} is requested: rows that "
            f"it was trained on would become validation rows; use --set store={before}, or omit "
            "start=champion"
        )


def known_images(plan: "Plan") -> dict[str, Any]:
    """Return shape and classes of the images; None where they are unknown until the data is read."""
    if plan.user_images is not None and (plan.user_images.classes or not manifest.is_committed(plan.raw)):
        size = plan.recipe.data.image_size
        return {
            "image_shape": [size, size, plan.recipe.data.channels],
            "classes": list(plan.user_images.classes) or None,
        }
    if plan.source_uri is not None:
        metadata = manifest.load(plan.raw).columns["metadata"]
        return {"image_shape": list(images.shape_of(metadata)), "classes": list(images.classes_of(metadata))}
    source = sources.load(plan.recipe.data.source)
    return {"image_shape": list(source.image_shape), "classes": list(source.classes)}
