"""Recipes: everything that decides what a training run does, in one frozen, checked dataclass."""

import dataclasses
import importlib
import math
import pkgutil
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from storage.uri import check_name
from tasks.learning import code, datasets, models


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete, checked description of one training run; equal recipes give equal URIs.

    Raises `ValueError` naming the field, the value and what is allowed.
    """

    name: str
    """What the run's folders are called: `[a-z0-9-]`, at most 64 characters."""
    data: str
    """Name of the data set: a module of `tasks.learning.datasets`, `own` for what `--data` gives, `own(DATA_SET)`."""
    model: str
    """Name of the model: a module of `tasks.learning.models`, a classifier of torchvision's, or `own(factory)`."""
    epochs: int
    """Passes over the training rows."""
    batch_size: int = 128
    """Rows per optimizer step over all workers together, however many there are."""
    accumulation: int = 1
    """Pieces in which each worker computes its share of a batch, one after the other: more of them take less memory."""
    learning_rate: float = 2e-3
    """Peak of the one-cycle schedule."""
    weight_decay: float = 1e-2
    """AdamW's decoupled weight decay."""
    warmup_fraction: float = 0.25
    """Share of all steps in which the learning rate rises to its peak."""
    label_smoothing: float = 0.05
    """Share of each target spread evenly over all classes, in training only."""
    max_shift: int = 2
    """Augmentation: each image moves by up to this many pixels, in training only."""
    flip: Literal["none", "horizontal"] = "none"
    """Augmentation: images mirrored left to right by chance, in training only."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic: bf16 autocast, or fp32 (bit-identical resume); auto is bf16 where the hardware has it."""
    image_size: int = 64
    """Of a person's own images: to how many pixels a side they are made."""
    channels: Literal[1, 3] = 3
    """Of a person's own images: 1 makes all of them gray, 3 gives all of them colours."""
    loader: Literal["auto", "resident", "streaming", "dataloader", "ray-data"] = "auto"
    """How workers read rows: from memory, again each epoch, by DataLoader, or by Ray Data; auto: by size and nodes."""
    prefetch_batches: int = 1
    """Windows that loader=ray-data prefetches. Does not change the names of results."""
    initialize: Literal["random", "champion"] = "random"
    """First weights: drawn anew, or those of the data set's champion."""
    seed: int = 0
    """Decides the split, the order of rows, the first weights and the augmentation."""
    validation_fraction: float = 0.1
    """Share of the training rows, per class, kept aside to choose the best epoch."""
    max_quarantined: float = 0.01
    """Largest share of raw rows that may be left out as unusable before preprocessing gives up."""
    accuracy_floor: float = 0.9
    """Gate: a model whose test accuracy is lower is never promoted."""
    margin: float = 0.0
    """Gate: how far below the champion's test accuracy a challenger may lie and still be promoted."""

    accelerator_type: str = ""
    """Kind of GPU that every worker gets, as Ray calls it, such as A100; empty: any. Changes no name of a result."""
    cpus_per_worker: float = 0.0
    """CPUs, as Ray counts them, that every worker takes; 0: its share of a node. Changes no name of a result."""
    fallback: str | None = None
    """Recipe that the command line goes on with when no mirror of `data` can be reached, if there is one."""
    origin: str | None = None
    """Where a recipe outside the project comes from, `path.py:function`; set by `load`."""

    def __post_init__(self) -> None:
        for name, kind in typing.get_type_hints(Recipe).items():
            _check_type(name, getattr(self, name), kind)
            if kind is float:  # 1 and 1.0 are equal, and so must be the URIs they give
                object.__setattr__(self, name, float(getattr(self, name)))
        check_name(self.name, field="name")
        datasets.check_known(self.data)
        models.check_known(self.model)
        _check("epochs", self.epochs, at_least=1, at_most=100_000)
        _check("batch_size", self.batch_size, at_least=1, at_most=2**24)
        _check("accumulation", self.accumulation, at_least=1, at_most=self.batch_size)
        for name in ("weight_decay", "max_shift", "seed", "margin", "label_smoothing", "cpus_per_worker"):
            _check(name, getattr(self, name), at_least=0)
        _check("seed", self.seed, at_most=2**63 - 1)
        _check("prefetch_batches", self.prefetch_batches, at_least=0, at_most=1024)
        _check("image_size", self.image_size, at_least=4, at_most=4096)
        _check("learning_rate", self.learning_rate, above=0)
        for name in ("validation_fraction", "warmup_fraction"):
            _check(name, getattr(self, name), above=0, below=1)
        _check("label_smoothing", self.label_smoothing, below=1)
        for name in ("accuracy_floor", "max_quarantined", "margin"):
            _check(name, getattr(self, name), at_least=0, at_most=1)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON-ready values; `Recipe(**recipe.to_dict())` is equal to it."""
        return dataclasses.asdict(self)


def known() -> list[str]:
    """Names that `load` accepts, sorted."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Recipe:
    """The recipe called `name`: the result of `recipe()` in the module of that name.

    `path.py:function` takes one from a file outside the project. Raises `ValueError` with the known names when there is
    none.
    """
    if ".py:" in name:
        return _outside(name)
    if name not in known():
        raise ValueError(f"recipe must be one of {', '.join(known())}, or path.py:function, got {name!r}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    recipe: Recipe = module.recipe()
    return recipe


def own(thing: Any) -> str:
    """The name by which a recipe takes a model's factory or a `DataSet` from its own file."""
    return code.reference(thing)


def _outside(name: str) -> Recipe:
    place, _, function = name.rpartition(":")
    path = Path(place).expanduser().absolute()
    try:
        make = getattr(code.load(path), function, None)
    except ValueError as error:
        raise ValueError(f"--recipe: {error}") from None
    if not callable(make):
        raise ValueError(f"--recipe: there is no function {function!r} in {path}")
    try:
        recipe = make()
    except Exception as error:
        raise ValueError(f"--recipe: {path}:{function}() failed: {type(error).__name__}: {error}") from None
    if not isinstance(recipe, Recipe):
        raise ValueError(f"--recipe: {path}:{function}() must return a Recipe, got {type(recipe).__name__}")
    return dataclasses.replace(recipe, origin=f"{path}:{function}")


def override(recipe: Recipe, settings: Iterable[str] | Mapping[str, Any]) -> Recipe:
    """`recipe` with `field=value` settings applied, each converted to its field's type and checked.

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
                raise ValueError(f"--set: {field} must be given once, got {value!r} and {settings[field]!r}")
    hints = typing.get_type_hints(Recipe)
    choices = ", ".join(name for name in hints if name not in ("name", "fallback", "origin"))
    changed = {}
    for field, value in settings.items():
        if field not in choices.split(", "):
            raise ValueError(f"--set: no recipe field is called {field!r}; the fields are {choices}")
        changed[field] = _convert(field, value, hints[field]) if isinstance(value, str) else value
    return dataclasses.replace(recipe, **changed)


def changes(recipe: Recipe) -> dict[str, Any]:
    """The fields in which `recipe` differs from the one of its name: what `override` needs to make it again."""
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
    except OverflowError:  # a whole number that no float can hold
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
