"""Recipes: all settings of a training run in one frozen, validated dataclass."""

import dataclasses
import difflib
import importlib
import math
import pkgutil
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from storage.uri import check_name
from tasks.learning import datasets, models, user_code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete, validated description of one training run; equal recipes give equal URIs.

    Raises `ValueError` naming the field, the value and what is allowed.
    """

    name: str
    """Name of the run's folders: `[a-z0-9-]`, at most 64 characters."""
    data: str
    """Name of the data set: a module of `tasks.learning.datasets`, `own` for `--data`, or `own(DATA_SET)`."""
    model: str
    """Name of the model: a module of `tasks.learning.models`, a torchvision classifier, or `own(factory)`."""
    epochs: int
    """Passes over the training rows."""
    batch_size: int = 128
    """Rows per optimizer step, summed over all workers."""
    accumulation: int = 1
    """Pieces in which each worker computes its share of a batch, one after the other; more pieces take less memory."""
    learning_rate: float = 2e-3
    """Peak of the one-cycle schedule."""
    weight_decay: float = 1e-2
    """AdamW's decoupled weight decay."""
    warmup_fraction: float = 0.25
    """Share of all steps during which the learning rate rises to its peak."""
    label_smoothing: float = 0.05
    """Share of each target spread evenly over all classes, in training only."""
    max_shift: int = 2
    """Augmentation: each image moves by up to this many pixels, in training only."""
    flip: Literal["none", "horizontal"] = "none"
    """Augmentation: each image is mirrored left to right with probability 1/2, in training only."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic: bf16 autocast, or fp32 (bit-identical resume); auto selects bf16 if the hardware supports it."""
    image_size: int = 64
    """The user's own images: pixels per side after resizing."""
    channels: Literal[1, 3] = 3
    """The user's own images: 1 converts all of them to gray, 3 to RGB."""
    test_fraction: float = 0.2
    """The user's own images in class folders without splits: share that becomes test rows."""
    loader: Literal["auto", "resident", "streaming", "dataloader", "ray-data"] = "auto"
    """Source of rows: memory, storage in each epoch, DataLoader, or Ray Data; auto: by data size and nodes."""
    prefetch_batches: int = 1
    """Windows that loader=ray-data prefetches. Does not change the names of results."""
    initialize: Literal["random", "champion"] = "random"
    """Initial weights: random, or those of the data set's champion."""
    seed: int = 0
    """Seed of the initial weights, the order of batches and the augmentation."""
    split_seed: int = 0
    """Seed of the choice of validation rows and of the order in which rows are stored."""
    validation_fraction: float = 0.1
    """Probability with which a training row becomes a validation row, used to choose the best epoch."""
    max_quarantined: float = 0.01
    """Largest share of raw rows that preprocessing may leave out as unusable; above it, preprocessing fails."""
    accuracy_floor: float = 0.9
    """Gate: a model with a lower test accuracy is never promoted."""
    margin: float = 0.0
    """Gate: how far below the test accuracy of the champion, and of the best one so far, a challenger may be."""
    significance: float = 0.0
    """Gate: largest p-value (exact McNemar test on the same test rows, two-sided) at which a challenger that is better
    than the champion is promoted; 0: no test. Ignored if `margin` is above 0."""

    accelerator_type: str = ""
    """GPU type of every worker, in Ray's terms, such as A100; empty: any. Does not change the names of results."""
    cpus_per_worker: float = 0.0
    """CPUs of every worker, in Ray's terms; 0: its share of a node. Does not change the names of results."""
    fallback: str | None = None
    """Recipe that the command line uses instead if no mirror of `data` can be reached, if any."""
    origin: str | None = None
    """Origin of a recipe outside the project, `path.py:function`; set by `load`."""

    def __post_init__(self) -> None:
        for name, kind in typing.get_type_hints(Recipe).items():
            _check_type(name, getattr(self, name), kind)
            if kind is float:  # 1 and 1.0 are equal, so they must give equal URIs
                object.__setattr__(self, name, float(getattr(self, name)))
        check_name(self.name, field="name")
        datasets.check_known(self.data)
        models.check_known(self.model)
        for name, bounds in _BOUNDS.items():
            _check(name, getattr(self, name), **bounds)
        _check("accumulation", self.accumulation, at_most=self.batch_size)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON-ready values; `Recipe(**recipe.to_dict())` equals the recipe."""
        return dataclasses.asdict(self)


_FRACTION: dict[str, float] = {"above": 0, "below": 1}
_SHARE: dict[str, float] = {"at_least": 0, "at_most": 1}
_SEED: dict[str, float] = {"at_least": 0, "at_most": 2**63 - 1}
_BOUNDS: dict[str, dict[str, float]] = {
    "epochs": {"at_least": 1, "at_most": 100_000},
    "batch_size": {"at_least": 1, "at_most": 2**24},
    "accumulation": {"at_least": 1},
    "learning_rate": {"above": 0},
    "weight_decay": {"at_least": 0},
    "warmup_fraction": _FRACTION,
    "label_smoothing": {"at_least": 0, "below": 1},
    "max_shift": {"at_least": 0},
    "test_fraction": _FRACTION,
    "image_size": {"at_least": 4, "at_most": 4096},
    "prefetch_batches": {"at_least": 0, "at_most": 1024},
    "seed": _SEED,
    "split_seed": _SEED,
    "validation_fraction": _FRACTION,
    "max_quarantined": _SHARE,
    "accuracy_floor": _SHARE,
    "margin": _SHARE,
    "significance": _SHARE,
    "cpus_per_worker": {"at_least": 0},
}
_JSON_BOUNDS = {
    "at_least": "minimum",
    "at_most": "maximum",
    "above": "exclusiveMinimum",
    "below": "exclusiveMaximum",
}
_JSON_TYPES = {int: "integer", float: "number", str: "string"}
_NOT_SETTINGS = ("name", "fallback", "origin")


def known() -> list[str]:
    """Return the sorted names that `load` accepts."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Recipe:
    """Load the recipe `name`: call `recipe()` of the module with that name.

    `path.py:function` loads a recipe from a file outside the project. Raises `ValueError` listing the known names if
    there is no such recipe, and, before executing anything, for code files outside the allowed roots.
    """
    user_code.check_listed()
    if ".py:" in name:
        return _outside(name)
    if name not in known():
        raise ValueError(f"recipe must be one of {', '.join(known())}, or path.py:function, got {name!r}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    recipe: Recipe = module.recipe()
    return recipe


def own(thing: Any) -> str:
    """Return the name under which a recipe refers to a model factory or a `DataSet` in its own file."""
    return user_code.reference(thing)


def _outside(name: str) -> Recipe:
    place, _, function = name.rpartition(":")
    path = Path(place).expanduser().absolute()
    try:
        make = getattr(user_code.load(path), function, None)
    except ValueError as error:
        raise ValueError(f"--recipe: {error}") from None
    if not callable(make):
        raise ValueError(f"--recipe: there is no function {function!r} in {path}")
    try:
        recipe = make()
    except Exception as error:
        raise ValueError(
            f"--recipe: {path}:{function}() failed: {type(error).__name__}: {error}{user_code.line_in(error)}"
        ) from None
    if not isinstance(recipe, Recipe):
        raise ValueError(f"--recipe: {path}:{function}() must return a Recipe, got {type(recipe).__name__}")
    return dataclasses.replace(recipe, origin=f"{path}:{function}")


def override(recipe: Recipe, settings: Iterable[str] | Mapping[str, Any]) -> Recipe:
    """Apply `field=value` settings to `recipe`, each converted to its field's type and validated.

    Raises `ValueError` naming the field, the value and what is allowed.
    """
    if not isinstance(settings, Mapping):
        pairs = [setting.partition("=") for setting in settings]
        for field, separator, value in pairs:
            if not separator or not field:
                raise ValueError(f"--set must be field=value, got {field + separator + value!r}")
        settings = {field: value for field, _, value in pairs}
        for field, _, value in pairs:
            if settings[field] != value:
                raise ValueError(f"--set: {field} was given twice, as {value!r} and {settings[field]!r}; give it once")
    hints = _kinds()
    changed = {}
    for field, value in settings.items():
        if field not in hints:
            (meant,) = difflib.get_close_matches(field, hints, n=1) or [""]
            hint = f"did you mean {meant!r}? The" if meant else "the"
            raise ValueError(f"--set: there is no recipe field {field!r}; {hint} fields are {', '.join(hints)}")
        changed[field] = _convert(field, value, hints[field]) if isinstance(value, str) else value
    return dataclasses.replace(recipe, **changed)


def schema() -> dict[str, Any]:
    """Return the JSON schema of the settings that `override` takes as a mapping."""
    fields: dict[str, dict[str, Any]] = {}
    for name, kind in _kinds().items():
        is_choice = typing.get_origin(kind) is Literal
        fields[name] = {"enum": list(typing.get_args(kind))} if is_choice else {"type": _JSON_TYPES[kind]}
        fields[name] |= {_JSON_BOUNDS[bound]: value for bound, value in _BOUNDS.get(name, {}).items()}
    return {"type": "object", "properties": fields, "additionalProperties": False}


def _kinds() -> dict[str, Any]:
    """Return the type of every field that a setting may change."""
    return {name: kind for name, kind in typing.get_type_hints(Recipe).items() if name not in _NOT_SETTINGS}


def changes(recipe: Recipe) -> dict[str, Any]:
    """Return the fields in which `recipe` differs from its original, so that `override` can rebuild it."""
    usual = load(recipe.origin or recipe.name).to_dict()
    return {name: value for name, value in recipe.to_dict().items() if value != usual[name]}


def _convert(field: str, value: str, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal:
        return next((choice for choice in typing.get_args(kind) if str(choice) == value), value)
    if kind not in (int, float):
        return value
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{field} must be {_described(kind)}, got {value!r}") from None


def _described(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if isinstance(kind, types.UnionType):
        return " or ".join(_described(part) for part in typing.get_args(kind))
    return {int: "a whole number", float: "a finite number", str: "text", types.NoneType: "none"}[kind]


def _check_type(field: str, value: Any, kind: Any) -> None:
    if typing.get_origin(kind) is Literal:
        fits = value in typing.get_args(kind)
    else:
        fits = isinstance(value, float | int if kind is float else kind) and not isinstance(value, bool)
    if not fits or (kind is float and not _is_finite(value)):
        raise ValueError(f"{field} must be {_described(kind)}, got {value!r}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def _check(
    field: str,
    value: float,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    bounds = [
        (at_least, ">=", at_least is None or value >= at_least),
        (at_most, "<=", at_most is None or value <= at_most),
        (above, ">", above is None or value > above),
        (below, "<", below is None or value < below),
    ]
    for bound, sign, holds in bounds:
        if not holds:
            raise ValueError(f"{field} must be {sign} {bound}, got {value}")
