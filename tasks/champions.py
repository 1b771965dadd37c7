"""The champion as the beginning of a new training: which one, and whether its weights fit."""

from typing import TYPE_CHECKING, Any

from storage import manifest, registry
from storage.manifest import Manifest
from storage.uri import URI, CheckpointURI
from tasks.learning import datasets, images

if TYPE_CHECKING:
    from tasks.plan import Plan

_ASKED = "--set initialize=champion"


def to_begin_with(plan: "Plan") -> CheckpointURI:
    """The champion of the plan's data set; of one that this very request made, what it began with itself.

    So the same request is found again although it put its own model in charge. Raises `ValueError` when there is no
    champion, or its model, images or classes are others.
    """
    champion = registry.champion(plan.root, plan.data_name)
    if champion is None:
        raise ValueError(
            f"{_ASKED}: {plan.root} has no champion of {plan.data_name!r} yet; leave it out the first time"
        )
    try:
        made = manifest.load(champion)
    except FileNotFoundError:
        raise ValueError(f"{_ASKED}: the champion {champion} is not there; leave it out, or restore it") from None
    _check_fits(plan, champion, made.statistics["model"])
    return CheckpointURI(made.parents["initial"]) if _is_of_this_request(plan, made) else champion


def _is_of_this_request(plan: "Plan", made: Manifest) -> bool:
    if "initial" not in made.parents or URI(made.parents["prepared"]).fingerprint != plan.prepared.fingerprint:
        return False
    same = {"initialize": URI(made.parents["initial"]).fingerprint}
    return made.parameters == {**plan.train_parameters, **same}


def _check_fits(plan: "Plan", champion: CheckpointURI, model: dict[str, Any]) -> None:
    """Raise `ValueError` naming what differs, as far as it is known before the data is read."""
    now: dict[str, Any] = {"model": plan.recipe.model, **_known(plan)}
    for name, value in now.items():
        if value is not None and model[name] != value:
            raise ValueError(
                f"{_ASKED}: {name} of the champion {champion} is {model[name]!r}, but {value!r} is asked for; leave it "
                "out to begin with random weights"
            )


def _known(plan: "Plan") -> dict[str, Any]:
    """Shape and classes of the images, none where only the data will tell."""
    if plan.own is not None:
        size = plan.recipe.image_size
        return {"image_shape": [size, size, plan.recipe.channels], "classes": list(plan.own.classes) or None}
    if plan.data is not None:
        metadata = manifest.load(plan.data).columns["metadata"]
        return {"image_shape": list(images.shape_of(metadata)), "classes": list(images.classes_of(metadata))}
    data_set = datasets.load(plan.recipe.data)
    return {"image_shape": list(data_set.image_shape), "classes": list(data_set.classes)}
