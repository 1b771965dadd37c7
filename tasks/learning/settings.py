"""Settings: fields of a recipe by name, without their groups, as `--set` and a deployment's form give them."""

import contextlib
import dataclasses
import difflib
import functools
import operator
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticUndefined

from storage.manifest import JSON
from tasks.learning import models, user_code
from tasks.learning.recipe import Recipe, from_dict
from tasks.learning.variants import start_from_text, start_to_text

_SHORT = {"lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size"}
"""Fields by names that are usual elsewhere."""
_NOT_SETTINGS = ("name", "origin", "kind", "factory")
_ALSO_CHOOSES = {"store": ("training", "augment")}
"""Fields with variants that another field chooses."""


@dataclasses.dataclass(frozen=True)
class _Setting:
    groups: tuple[str, ...]
    """Place of the field in a recipe."""
    annotation: Any
    default: object
    """Value of a new recipe; none if each has to give one."""
    meaning: str
    variants: tuple[str, ...] = ()
    """Kinds of the innermost group that have the field; empty: that group has no variants."""
    chooses: tuple[str, ...] = ()
    """Place of the variants that the value chooses from, if it does."""


def override(recipe: Recipe, settings: Iterable[str] | Mapping[str, object]) -> Recipe:
    """Apply `field=value` settings to `recipe`, each converted to its field's type and validated.

    A field may be given with its group, such as `gate.minimum`. A new variant, such as `optimizer=sgd`, keeps the
    values of fields that it shares with the old one.
    """
    option, values = "" if isinstance(settings, Mapping) else "--set: ", recipe.to_dict()
    by_field = settings if isinstance(settings, Mapping) else _parsed(settings)
    try:
        changed = {_known(field): value for field, value in by_field.items()}
        for name in sorted(
            changed, key=lambda name: len(_settings()[name].chooses) or 9
        ):  # a variant before its fields
            _change(values, name, changed[name])
        now = from_dict(values)
        return now if now.model == recipe.model else dataclasses.replace(now, name=_with_model(recipe, now.model))
    except ValueError as error:
        raise ValueError(f"{option}{error}") from None


def _with_model(recipe: Recipe, model: str) -> str:
    """Return the name of `recipe` with another model: results are named after it."""
    before = recipe.name.removesuffix(f"-{models.in_names(recipe.model)}")
    return f"{before}-{models.in_names(model)}"[:64].rstrip("-")


def _change(values: JSON, name: str, value: object) -> None:
    setting = _settings()[name]
    if name == "start":  # one text spells the variant and its field
        _group(values, setting.groups)[name] = start_from_text(str(value))
        return
    if isinstance(value, str):
        value = _convert(value, name, setting.annotation)
    kinds = list(map(str, _choices(setting.annotation)))
    if setting.chooses == (*setting.groups, name) and value not in kinds:
        raise ValueError(f"{name} must be one of {', '.join(kinds)}, got {value!r}")
    *groups, field = setting.chooses or ("",)
    if field in (group := _group(values, groups)) or group.get("kind") == "finetune":  # a probe has no such variants
        known, before = _settings(), group.get(field, {})
        shared = {name: old for name, old in before.items() if name in known and value in known[name].variants}
        group[field] = {"kind": value, **shared}
    elif name not in _ALSO_CHOOSES and setting.chooses:
        raise ValueError(f"{name} needs training=finetune, got {value!r} with training=probe")
    if setting.chooses == (*setting.groups, name):
        return
    try:
        group = _group(values, setting.groups)
    except KeyError:
        raise ValueError(f"{name} needs training=finetune, got {value!r} with training=probe") from None
    if setting.variants and group["kind"] not in setting.variants:
        chooser = next(name for name, other in _settings().items() if other.chooses == setting.groups)
        needed = " or ".join(f"{chooser}={variant}" for variant in setting.variants)
        raise ValueError(f"{name} needs {needed}, got {value!r} with {chooser}={group['kind']}; add --set {needed}")
    group[name] = value


def _group(values: JSON, groups: Iterable[str]) -> JSON:
    return functools.reduce(operator.getitem, groups, values)


def field_meant(name: str) -> str:
    """Return the field that `name` is or may stand for; empty if there is none."""
    return _SHORT.get(name) or next(iter(difflib.get_close_matches(name, _settings(), n=1, cutoff=0.75)), "")


def names() -> list[str]:
    return list(_settings())


def flat(values: JSON) -> JSON:
    """Return `values` without groups; a variant is the value of its field, such as `optimizer: sgd`."""
    fields: JSON = {}
    for name, value in values.items():
        if name == "start" or not isinstance(value, dict):
            fields[name] = start_to_text(value) if isinstance(value, dict) else value
            continue
        if "kind" in value:
            fields[name] = value["kind"]
        fields |= flat({field: inner for field, inner in value.items() if field != "kind"})
    return fields


def described(recipe: Recipe) -> Iterator[str]:
    """Yield lines on each field of `recipe`: its value, as `--set` takes it, its choices and default; its meaning."""
    values = flat(recipe.to_dict())
    for name, setting in _settings().items():
        usual = "each recipe has its own" if setting.default is None else f"default: {setting.default}"
        choices = "|".join(map(str, _choices(setting.annotation)))
        value = setting.default if values.get(name) is None else values[name]
        yield f"{name}={value}  ({'; '.join(filter(None, [choices, usual]))})"
        yield f"    {' '.join(setting.meaning.split())}"


def _parsed(settings: Iterable[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for field, separator, value in (setting.partition("=") for setting in settings):
        if not separator or not field:
            raise ValueError(f"--set must be field=value, such as epochs=5, got {field + separator + value!r}")
        if fields.setdefault(field, value) != value:
            raise ValueError(f"--set: {field} was given twice, as {fields[field]!r} and {value!r}; give it once")
    return fields


def _known(field: str) -> str:
    *groups, name = field.replace("-", "_").removesuffix(".kind").split(".")
    if name in _settings() and set(groups) <= set(_settings()[name].groups):
        return name
    meant = field_meant(name)
    hint = f"did you mean {meant!r}? see data-to-model recipes" if meant else f"the fields are {', '.join(_settings())}"
    raise ValueError(f"there is no recipe field {field!r}; {hint}")


@functools.cache
def _settings() -> dict[str, _Setting]:
    settings: dict[str, _Setting] = {}
    for name, setting in _fields(Recipe, ()):
        before = settings.get(name, setting)
        variants = tuple(dict.fromkeys(before.variants + setting.variants))
        settings[name] = dataclasses.replace(before, variants=variants)
    return settings


def _fields(group: Any, groups: tuple[str, ...], variants: tuple[str, ...] = ()) -> Iterator[tuple[str, _Setting]]:
    for name, field in group.__pydantic_fields__.items():
        types = typing.get_args(field.annotation) or (field.annotation,)
        kinds: list[Any] = [kind for kind in types if dataclasses.is_dataclass(kind)]
        place, tags = (*groups, name), [kind.kind for kind in kinds if hasattr(kind, "kind")]
        # A field of a base class has its docstring only there.
        of_bases = [getattr(base, "__pydantic_fields__", {}).get(name) for base in group.__mro__]
        meaning = next((each.description for each in of_bases if each and each.description), "")
        if name == "start":
            yield name, _Setting(groups, str, "random", meaning, variants)
            continue
        if not kinds and name not in _NOT_SETTINGS:
            default = "unset" if field.default is None else field.default
            default = None if default is PydanticUndefined else default
            yield name, _Setting(groups, field.annotation, default, meaning, variants, _ALSO_CHOOSES.get(name, ()))
        elif tags and place not in _ALSO_CHOOSES.values():
            type_ = Literal[*(tag for tag in tags if tag != "own")]  # type: ignore[valid-type]
            yield name, _Setting(groups, type_, getattr(field.default, "kind", None), meaning, chooses=place)
        for kind in kinds:
            yield from _fields(kind, place, (kind.kind,) if tags else ())


def _convert(text: str, name: str, annotation: Any) -> object:
    """Return `text` as the type of its field; text that does not fit is left to the recipe, which refuses it."""
    if choices := _choices(annotation):
        spelled = {str(choice).replace("_", "-"): choice for choice in choices}
        return spelled.get(text.replace("_", "-"), text)
    if name == "source" and not user_code.is_reference(text):
        return text.replace("_", "-")
    with contextlib.suppress(ValidationError):
        return TypeAdapter(annotation).validate_strings(text)
    return text


def _choices(annotation: object) -> tuple[object, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
