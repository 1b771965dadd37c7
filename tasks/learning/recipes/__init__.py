"""Recipes by name: each is a function that returns a complete recipe, in a module of this package or in any file."""

import dataclasses
import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path

from storage.manifest import JSON
from tasks.learning import models, settings, user_code
from tasks.learning.recipe import Data, Gate, Probe, Recipe, Resources, Split, Training, from_dict
from tasks.learning.settings import described, field_meant, flat, names, override
from tasks.learning.variants import SGD, AdamW, Champion, FileAugment, Own, PixelAugment, Pretrained, Random, Weights

__all__ = ["Data", "Gate", "Probe", "Recipe", "Resources", "Split", "Training"]
__all__ += ["SGD", "AdamW", "Champion", "FileAugment", "Own", "PixelAugment", "Pretrained", "Random", "Weights"]
__all__ += ["changes", "described", "field_meant", "flat", "from_dict", "known", "load", "names", "override"]
__all__ += ["own", "table"]


def known() -> list[str]:
    """Return the sorted names that `load` accepts."""
    return sorted(_shipped())


def table() -> list[tuple[str, str, str, str]]:
    """Return a row for each recipe of the project, and the header: name, source, model, and what it is."""
    rows = [("recipe", "source", "model", "")]
    for name, make in sorted(_shipped().items()):
        recipe, about = make(), inspect.getdoc(make) or ""
        rows.append((name, recipe.data.source, recipe.model, about.splitlines()[0].removeprefix("Return ")))
    return rows


def load(name: str) -> Recipe:
    """Load the recipe `name`: call the function of that name, with `_` for `-`, in a module of this package.

    `path.py:function` or `folder:function` loads a recipe from outside the project. Raises `ValueError` listing the
    known names if there is no such recipe.
    """
    user_code.check_listed()
    if ":" in name:
        return _outside(name)
    make = _shipped().get(name.replace("_", "-"))
    if make is None:
        like = [f"{name}:recipe"] * name.endswith(".py") or difflib.get_close_matches(name, known(), n=1)
        like = like or [recipe for recipe in known() if recipe.startswith(name)]
        meant = f"--set model={name}" if name in models.PROJECT else f"--recipe {like[0]}" if like else ""
        hint = f"; did you mean {meant}?" if meant else ""
        raise ValueError(
            f"recipe must be one of {', '.join(known())}, path.py:function or folder:function, got {name!r}{hint}"
        )
    return dataclasses.replace(make(), origin=name.replace("_", "-"))


@functools.cache
def _shipped() -> dict[str, Callable[[], Recipe]]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    functions = [pair for module in modules for pair in inspect.getmembers(module, inspect.isfunction)]
    return {name.replace("_", "-"): make for name, make in functions}


own = user_code.reference
"""Return the name under which a recipe refers to a factory of models or optimizers, or a `Source`, in its own file."""


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
        reason = f"{type(error).__name__}: {error}{user_code.line_in(error)}"
        raise ValueError(f"--recipe: {path}:{function}() failed: {reason}") from None
    if not isinstance(recipe, Recipe):
        raise ValueError(f"--recipe: {path}:{function}() must return a Recipe, got {type(recipe).__name__}")
    return dataclasses.replace(recipe, origin=f"{path}:{function}")


def changes(recipe: Recipe) -> JSON:
    """Return the settings in which `recipe` differs from its original, so that `override` can rebuild it."""
    usual, now = (flat(some.to_dict()) for some in (load(recipe.origin or recipe.name), recipe))
    return {name: now[name] for name in settings.names() if name in now and now[name] != usual.get(name)}
