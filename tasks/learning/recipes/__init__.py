"""Recipes: all settings of a training run in one frozen, validated dataclass."""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import ConfigDict, Field, TypeAdapter

from storage.uri import check_name
from tasks.learning import models, sources, user_code
from tasks.learning.field_errors import errors_in_one_line

_SHORT = {"lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size"}
"""Fields by names that are usual elsewhere."""
_NOT_SETTINGS = ("name", "fallback", "origin")
_DATA = ("image_size", "channels", "image_encoding")
"""Fields that decide the raw dataset of the user's own images."""
_SPLIT = ("split_seed", "validation_fraction", "max_quarantined")
"""Fields that decide the prepared dataset."""
_GATE = ("accuracy_floor", "margin", "significance")
"""Fields that decide promotion, and no result."""
_RESOURCES = ("device", "step", "accelerator_type", "cpus_per_worker", "prefetch_batches")
"""Fields that decide no result."""
_Fraction = Annotated[float, Field(gt=0, lt=1)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]


@errors_in_one_line
@pydantic.dataclasses.dataclass(
    frozen=True, kw_only=True, config=ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
)
class Recipe:
    """A complete, validated description of one training run; equal recipes give equal URIs.

    Raises `ValueError` naming the field, the value and what is allowed.
    """

    name: str
    """Name of the run's folders: `[a-z0-9-]`, at most 64 characters."""
    data: str
    """Name of the data set: a module of `tasks.learning.sources`, `user-images` for `--data`, or `own(SOURCE)`."""
    model: str
    """Name of the model: a module of `tasks.learning.models`, a torchvision classifier, or `own(factory)`."""
    epochs: int = Field(ge=1, le=100_000)
    """Passes over the training rows."""
    batch_size: int = Field(default=128, ge=1, le=2**24)
    """Rows per optimizer step, summed over all workers."""
    accumulation: int = Field(default=1, ge=1)
    """Pieces in which each worker computes its share of a batch, one after the other; more pieces take less memory."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or SGD with Nesterov's momentum."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak of the schedule."""
    weight_decay: float = Field(default=1e-2, ge=0)
    """Decay of the weights: decoupled, times the learning rate (AdamW), or added to the gradient (SGD)."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD."""
    norm_bias_scale: float = Field(default=1.0, gt=0)
    """SGD: learning rate of the biases of normalisation layers, relative to that of the other weights."""
    schedule: Literal["one-cycle", "triangular"] = "one-cycle"
    """Learning rate over all steps: cosine, from 1/25 of the peak, later to almost 0; or linear, from 1/5, to 7/100."""
    warmup_fraction: _Fraction = 0.25
    """Share of all steps during which the learning rate rises to its peak."""
    label_smoothing: float = Field(default=0.05, ge=0, lt=1)
    """Share of each target spread evenly over all classes, in training only."""
    max_shift: int = Field(default=2, ge=0)
    """Augmentation: each image moves by up to this many pixels, in training only."""
    flip: Literal["none", "horizontal", "alternating"] = "none"
    """Augmentation, in training only: images are mirrored left to right: each with probability 1/2 (horizontal), or
    half of them in one epoch and the other half in the next (alternating)."""
    crop_scale: float = Field(default=1.0, gt=0, le=1)
    """Augmentation of encoded images: smallest share of an image's area that a random crop keeps; 1: no crop."""
    color_jitter: float = Field(default=0.0, ge=0, le=1)
    """Augmentation of encoded images: largest random change of brightness, contrast and saturation, as a share."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic: bf16 autocast, or fp32 (bit-identical resume); auto selects bf16 if the hardware supports it."""
    validation_batch_size: int = Field(default=0, ge=0, le=2**24)
    """Rows per validation batch of each worker; 0: at most 512, on a GPU as many as in a training step."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Epochs from one checkpoint to the next; the last epoch has one too. Only these epochs can be the best one."""
    compile: Literal["off", "on"] = "off"
    """Compilation of the training step with torch.compile; on: the compiled code is kept for later runs."""
    image_size: int = Field(default=64, ge=4, le=4096)
    """The user's own images: pixels per side after resizing."""
    channels: Literal[1, 3] = 3
    """The user's own images: 1 converts all of them to gray, 3 to RGB."""
    image_encoding: Literal["decoded", "encoded"] = "decoded"
    """The user's own image files: stored as pixels of `image_size`, or unchanged and decoded in every epoch."""
    test_fraction: _Fraction = 0.2
    """The user's own images in class folders without splits: share that becomes test rows."""
    loader: Literal["auto", "resident", "streaming", "dataloader", "ray-data"] = "auto"
    """Source of rows: memory, storage in each epoch, DataLoader, or Ray Data; auto: by data size and nodes."""
    prefetch_batches: int = Field(default=1, ge=0, le=1024)
    """Windows that loader=ray-data prefetches. Does not change the names of results."""
    initialize: Literal["random", "champion"] = "random"
    """Initial weights: random, or those of the current champion of the run's championship."""
    seed: _Seed = 0
    """Seed of the initial weights, the order of batches and the augmentation."""
    split_seed: _Seed = 0
    """Seed of the choice of validation rows and of the order in which rows are stored."""
    validation_fraction: _Fraction = 0.1
    """Probability with which a training row becomes a validation row, used to choose the best epoch."""
    max_quarantined: _Share = 0.01
    """Largest share of raw rows that preprocessing may leave out as unusable; above it, preprocessing fails."""
    accuracy_floor: _Share = 0.9
    """Gate: a model with a lower test accuracy is never promoted."""
    margin: _Share = 0.0
    """Gate: how far below the test accuracy of the champion, and of the best one so far, a challenger may be."""
    significance: _Share = 0.0
    """Gate: largest p-value (exact McNemar test on the same test rows, two-sided) at which a challenger that is better
    than the champion is promoted; 0: no test. Ignored if `margin` is above 0."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of every worker: a whole GPU (cuda), none (cpu), or auto: a GPU wherever Ray has any now. Does not
    change the names of results."""
    step: Literal["eager", "graph", "auto"] = "eager"
    """Launch of a step on a GPU: kernel by kernel, as one CUDA graph (one worker, rows in memory, a model that never
    waits for the GPU), or auto: a graph if possible. Does not change the names of results."""
    accelerator_type: str = ""
    """GPU type of every worker, in Ray's terms, such as A100; empty: any. Does not change the names of results."""
    cpus_per_worker: float = Field(default=0.0, ge=0)
    """CPUs of every worker, in Ray's terms; 0: its share of a node. Does not change the names of results."""
    fallback: str | None = None
    """Recipe that the command line uses instead if no mirror of `data` can be reached, if any."""
    origin: str | None = None
    """Origin of a recipe outside the project, `path.py:function`; set by `load`."""

    def __post_init__(self) -> None:
        check_name(self.name, field="name")
        sources.check_known(self.data)
        models.check_known(self.model)
        if self.accelerator_type and self.device == "cpu":
            raise ValueError(f"accelerator_type must be empty with device=cpu, got {self.accelerator_type!r}")
        if self.step == "graph" and (self.device != "cuda" or self.loader not in ("auto", "resident")):
            raise ValueError("step must be eager or auto unless device=cuda and loader=resident or auto, got 'graph'")
        if self.accumulation > self.batch_size:
            raise ValueError(f"accumulation must be <= {self.batch_size}, got {self.accumulation}")
        if self.optimizer != "sgd":
            self._check_neutral(momentum=0.9, norm_bias_scale=1.0, needed="optimizer=sgd")
        self._check_encoding()

    def _check_neutral(self, *, needed: str, **neutral: float) -> None:
        for field, value in neutral.items():
            if getattr(self, field) != value:
                raise ValueError(f"{field} must be {value:g}, got {getattr(self, field)}; other values need {needed}")

    def _check_encoding(self) -> None:
        if self.image_encoding == "decoded":
            self._check_neutral(crop_scale=1.0, color_jitter=0.0, needed="image_encoding=encoded")
        elif self.data != sources.USER_IMAGES:
            kept = "only the user's own image files can be kept encoded"
            raise ValueError(f"image_encoding must be decoded for data={self.data}, got 'encoded'; {kept}")
        elif self.flip == "alternating":
            raise ValueError("flip must be none or horizontal with image_encoding=encoded, got 'alternating'")
        elif self.loader in ("resident", "dataloader"):
            raise ValueError(f"loader must be auto, streaming or ray-data for encoded images, got {self.loader!r}")

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON-ready values, from which `Recipe(**values)` makes the recipe again."""
        return dataclasses.asdict(self)


def known() -> list[str]:
    """Return the sorted names that `load` accepts."""
    return sorted(_shipped())


def load(name: str) -> Recipe:
    """Load the recipe `name`: call the function of that name, with `_` for `-`, in a module of this package.

    `path.py:function` loads a recipe from a file outside the project. Raises `ValueError` listing the known names if
    there is no such recipe, and, before executing anything, for code files outside the allowed roots.
    """
    user_code.check_listed()
    if ".py:" in name:
        return _outside(name)
    if name not in known():
        raise ValueError(f"recipe must be one of {', '.join(known())}, or path.py:function, got {name!r}")
    return _shipped()[name]()


@functools.cache
def _shipped() -> dict[str, Callable[[], Recipe]]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    made = [pair for module in modules for pair in inspect.getmembers(module, inspect.isfunction)]
    return {name.replace("_", "-"): make for name, make in made}


own = user_code.reference
"""Return the name under which a recipe refers to a model factory or a `Source` in its own file."""


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


def override(recipe: Recipe, settings: Iterable[str] | Mapping[str, Any]) -> Recipe:
    """Apply `field=value` settings to `recipe`, each converted to its field's type and validated."""
    option = "" if isinstance(settings, Mapping) else "--set: "
    if not isinstance(settings, Mapping):
        given: dict[str, str] = {}
        for field, separator, value in (setting.partition("=") for setting in settings):
            if not separator or not field:
                raise ValueError(f"--set must be field=value, got {field + separator + value!r}")
            if given.setdefault(field, value) != value:
                raise ValueError(f"--set: {field} was given twice, as {given[field]!r} and {value!r}; give it once")
        settings = given
    hints = _kinds()
    changed = {}
    for field, value in settings.items():
        if field not in hints:
            meant = field_meant(field)
            hint = f"did you mean {meant!r}? docs/cli.md lists all" if meant else f"the fields are {', '.join(hints)}"
            raise ValueError(f"{option}there is no recipe field {field!r}; {hint}")
        changed[field] = _convert(value, hints[field]) if isinstance(value, str) else value
    try:
        return dataclasses.replace(recipe, **changed)
    except ValueError as error:
        raise ValueError(f"{option}{error}") from None


def field_meant(name: str) -> str:
    """Return the field that `name` is or may stand for; empty if there is none."""
    return _SHORT.get(name) or next(iter(difflib.get_close_matches(name, _kinds(), n=1)), "")


def schema() -> dict[str, Any]:
    """Return the JSON schema of the settings that `override` takes as a mapping."""
    found = TypeAdapter(Recipe).json_schema()["properties"]
    hidden = ("title", "default")  # a form would send the defaults of `Recipe` instead of those of the chosen recipe
    fields = {name: {key: value for key, value in found[name].items() if key not in hidden} for name in _kinds()}
    return {"type": "object", "properties": fields, "additionalProperties": False}


def _kinds() -> dict[str, Any]:
    return {name: kind for name, kind in typing.get_type_hints(Recipe).items() if name not in _NOT_SETTINGS}


def changes(recipe: Recipe) -> dict[str, Any]:
    """Return the fields in which `recipe` differs from its original, so that `override` can rebuild it."""
    usual = load(recipe.origin or recipe.name).to_dict()
    return {name: value for name, value in recipe.to_dict().items() if value != usual[name]}


def ingest_parameters(recipe: Recipe) -> dict[str, Any]:
    """Return the fields that determine the raw dataset of the user's own images, besides their files."""
    return {name: getattr(recipe, name) for name in _DATA}


def preprocess_parameters(recipe: Recipe) -> dict[str, Any]:
    """Return the fields that determine the prepared dataset, besides the raw one."""
    return {name: getattr(recipe, name) for name in _SPLIT}


def training_parameters(recipe: Recipe) -> dict[str, Any]:
    """Return the fields that determine the weights, besides the prepared dataset."""
    others = (*_NOT_SETTINGS, *_DATA, *_SPLIT, *_GATE, *_RESOURCES, "data", "test_fraction")
    return {name: value for name, value in recipe.to_dict().items() if name not in others}


def gate_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the fields that determine promotion, as `tasks.promotion.gate` takes them."""
    settings = {name: getattr(recipe, name) for name in _GATE}
    if recipe.margin or not recipe.significance:
        del settings["significance"]
    return settings


def _convert(value: str, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal:
        return next((choice for choice in typing.get_args(kind) if str(choice) == value), value)
    with contextlib.suppress(ValueError):  # the recipe refuses the text
        return kind(value)
    return value
