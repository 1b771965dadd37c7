"""Checks before a flow starts: one list for runs, predictions and audits, typed, with `--check`, or of a deployment.

`checked` is the one way from a request to what its flow carries out. It stops at the first failure.
"""

import contextlib
import dataclasses
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, overload

from flows.cli.options import AuditOptions, FlowOptions, PredictOptions, RecipeOptions, RunOptions
from storage import manifest
from storage.admin import runs
from storage.uri import check_name, parse_root
from tasks.learning import recipes, user_code
from tasks.learning.recipes import Recipe
from tasks.resources import capacity, machine
from tasks.resources.limits import Limits
from tasks.runners.nodes import check_nodes

if TYPE_CHECKING:
    from tasks.planning.audit_request import AuditRequest
    from tasks.planning.plan import Plan
    from tasks.planning.predict_request import BatchRequest

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_MOST_S = 365 * _SECONDS["d"]
"""A year; the timers of Python, torch and Ray do not accept arbitrarily large values."""
_WIDTH = 100
R = TypeVar("R", bound="Plan | BatchRequest | AuditRequest")


@dataclasses.dataclass(frozen=True)
class Checked:
    """A planned request, for the checks."""

    request: "Plan | BatchRequest | AuditRequest"
    training: "Plan | None"
    """The plan of the run, or of the run that an audit is derived from; None for a prediction."""
    is_thorough: bool
    """Whether to look for everything that can be known, as `--check` does, although that takes seconds."""


Check = Callable[[Checked], str]
"""Returns in words what it found, a line per fact, nothing if it does not apply; raises `ValueError`."""


def _storage(checked: Checked) -> str:
    return str(checked.request.root) if checked.training else ""


def _data(checked: Checked) -> str:
    """Say where the data comes from; raise `ValueError` if what is to be downloaded cannot be reached."""
    if (plan := checked.training) is None:
        return ""
    from tasks.learning import downloading, pretrained, sources
    from tasks.planning import model_check

    weights = plan.weights
    if weights and weights.files[0].model and not manifest.is_committed(weights.target):
        try:
            pretrained.read_published(weights.files[0].model)  # timm downloads into its cache
        except downloading.DownloadFailed as error:
            raise ValueError(str(error)) from None
    if images := model_check.listing_of(plan):
        return "\n".join([f"{len(images.files):,} files in {images.uri}", *map(str, images.left_out), *images.notes])
    results = [plan.preprocess.raw, *([plan.download.target] if plan.download else [])]
    if there := next(filter(manifest.is_committed, results), None):
        return f"{there} exists"
    assert plan.download, "a raw dataset of user images exists"
    source = sources.load(plan.recipe.data.source)
    downloading.check_reachable(source, plan.download.mirrors)
    return source.notice or f"a mirror of {source.name} responds"


def _classes(checked: Checked) -> str:
    from tasks.planning import data_summary

    return data_summary.of_plan(checked.training)[0] if checked.training else ""


def _labels(checked: Checked) -> str:
    from tasks.planning import data_summary

    return data_summary.of_plan(checked.training)[1] if checked.training else ""


def _images(checked: Checked) -> str:
    from tasks.planning import image_check

    plan = checked.training
    return (
        image_check.check_images(plan) if checked.is_thorough and plan and plan.ingest and plan.ingest.listing else ""
    )


def _recipe(checked: Checked) -> str:
    if not checked.training or not checked.is_thorough:
        return ""
    fields = recipes.flat(checked.training.recipe.to_dict())
    settings = runs.changes_as_text({name: fields[name] for name in recipes.names() if name in fields})
    return "\n".join(textwrap.wrap(settings, _WIDTH))


def _to_do(checked: Checked) -> str:
    return describe_run(checked.training) if checked.training and checked.is_thorough else ""


def _model(checked: Checked) -> str:
    if (plan := checked.training) is None:
        return ""
    from tasks.planning import model_check

    model_check.check_training(plan)
    is_built = checked.is_thorough or (plan.needs_ray and user_code.is_reference(plan.recipe.model))
    return model_check.check_model(plan) if is_built else plan.recipe.model


def _ray(checked: Checked) -> str:
    needs = checked.request.needs
    return capacity.check_workers(needs.workers, needs) if checked.request.needs_ray else ""


def _disk(checked: Checked) -> str:
    return capacity.check_disk(checked.request.root) if checked.request.needs_ray else ""


def _nodes(checked: Checked) -> str:
    request, needs = checked.request, checked.request.needs
    return check_nodes(request.root, needs.workers, needs) if request.needs_ray else ""


CHECKS: Sequence[tuple[str, Check]] = (
    ("storage", _storage),
    ("data", _data),
    ("classes", _classes),
    ("labels", _labels),
    ("images", _images),
    ("recipe", _recipe),
    ("run", _to_do),
    ("model", _model),
    ("Ray", _ray),
    ("disk", _disk),
    ("nodes", _nodes),
)
"""Every check of a planned request, in order; what the request itself says is checked by `check_request`."""


def check_request(options: FlowOptions) -> Recipe | None:
    """Check what is known without access to storage; return the recipe of a training with the request's settings."""
    from tasks.images.option import default_recipe
    from tasks.learning import downloading
    from tasks.planning import make_plan

    machine.choose(options.cores)
    make_plan.check_workers(options.workers)
    _limits(options)
    if not isinstance(options, RunOptions):
        return None
    name = default_recipe(options.data, storage=options.storage) if options.recipe is None else options.recipe
    recipe = recipes.override(recipes.load(name), options.settings)
    if options.register_as:
        check_name(options.register_as, field="--register-as")
    for mirror in options.mirror:
        downloading.mirror_address(mirror)
    if options.data is not None:
        parse_root(options.data, option="--data")
    if options.data and options.mirror:
        raise ValueError("--data cannot be combined with --mirror, because nothing is downloaded")
    return recipe


def _plan(options: RunOptions) -> "Plan":
    from tasks.planning import make_plan

    recipe = check_request(options)
    assert recipe
    return make_plan.make_plan(
        storage=options.storage,
        recipe=recipe,
        workers=options.workers,
        data=options.data,
        mirror=options.mirror,
        registered_model=options.register_as,
        judge_only=options.judge_only,
        refresh=options.refresh,
        limits=_limits(options),
    )


def _plan_prediction(options: PredictOptions) -> "BatchRequest":
    from tasks.planning import predict_request

    check_request(options)
    return predict_request.resolve(
        storage=options.storage,
        model=options.model,
        data=options.data,
        split=options.split,
        min_confidence=options.min_confidence,
        workers=options.workers,
        limits=_limits(options),
    )


def _plan_audit(options: AuditOptions) -> "AuditRequest":
    from tasks.learning import sources
    from tasks.planning import audit_request

    names = [field.name for field in dataclasses.fields(RunOptions) if hasattr(options, field.name)]
    values = {name: getattr(options, name) for name in names}
    if options.data in sources.known():
        values["data"] = None
        if options.recipe is None:
            values["recipe"] = f"{options.data}-resnet18"
        elif recipes.load(options.recipe).data.source != options.data:
            values["settings"] = [*options.settings, f"source={options.data}"]
    run = RunOptions(**values, register_as="audit")  # it competes with no model, so no champion limits the data
    recipe = check_request(run)
    if recipe and recipe.training.start.kind == "champion":
        raise ValueError("start must not be champion in an audit: that model was trained on these images; omit it")
    return audit_request.resolve(_plan(run), folds=options.folds, is_fast=options.fast)


_passed: ContextVar[Any] = ContextVar("passed", default=None)
"""What a command has checked and planned, for the flow that it starts."""


@contextlib.contextmanager
def passing(request: "Plan | BatchRequest | AuditRequest") -> Iterator[None]:
    """Let the flow that is called in the block carry out `request`, without planning it again."""
    token = _passed.set(request)
    try:
        yield
    finally:
        _passed.reset(token)


def ignore(name: str, found: str) -> None:
    """Tell nobody."""


@overload
def checked(options: RunOptions, tell: Callable[[str, str], object] = ...) -> "Plan": ...
@overload
def checked(options: PredictOptions, tell: Callable[[str, str], object] = ...) -> "BatchRequest": ...
@overload
def checked(options: AuditOptions, tell: Callable[[str, str], object] = ...) -> "AuditRequest": ...
def checked(
    options: RunOptions | PredictOptions | AuditOptions, tell: Callable[[str, str], object] = ignore
) -> "Plan | BatchRequest | AuditRequest":
    """Plan a request and check all that can be known before its flow starts; raise `ValueError` if it is invalid.

    `tell` takes the name of each check that succeeded, and what it found.
    """
    if request := _passed.get():
        return request  # type: ignore[no-any-return]
    if isinstance(options, PredictOptions):
        return _with_checks(_plan_prediction(options), None, False, tell)
    if isinstance(options, AuditOptions):
        audit = _plan_audit(options)
        return _with_checks(audit, audit.plan, False, tell)
    plan = _plan(options)
    changes = runs.changes_as_text(recipes.changes(plan.recipe))
    tell("request", f"recipe {plan.recipe.name} {changes}".rstrip())
    return _with_checks(plan, plan, options.check, tell)


def _with_checks(request: R, training: "Plan | None", is_thorough: bool, tell: Callable[[str, str], object]) -> R:
    for name, check in CHECKS:
        if found := check(Checked(request, training, is_thorough)):
            tell(name, found)
    return request


def describe_run(plan: "Plan") -> str:
    """Describe a run: the stages to do."""
    names = ["download weights" if stage is plan.weights else stage.kind.stage for stage in plan.stages]
    to_do = [name for name, stage in zip(names, plan.stages, strict=True) if not manifest.is_committed(stage.target)]
    if manifest.is_committed(plan.preprocess.raw) and "download" in to_do:
        to_do.remove("download")
    return f"to do: {', '.join(to_do)}" if to_do else "all results exist and will be reused"


def _limits(options: FlowOptions) -> Limits:
    """Return the time limits of a request; raise `ValueError` naming the option if one is invalid."""
    stage_s = _seconds(options.stage_timeout, option="--stage-timeout")
    if not isinstance(options, RecipeOptions):
        return Limits(stage_s=stage_s)
    return Limits(stage_s=stage_s, stall_s=_seconds(options.stall_timeout, option="--stall-timeout"))


def _seconds(text: str, *, option: str) -> float:
    """Return the seconds of a duration such as `30s`, `10m`, `2h` or `1d`; raise `ValueError` naming `option`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", str(text))
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds <= _MOST_S:
        raise ValueError(f"{option} must be a number with a unit (s, m, h, d), at most 365d, got {text!r}; use 10m")
    return seconds
