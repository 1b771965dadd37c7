"""From a request, typed or of a deployment, to the checked plan that its flow carries out."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from contextvars import ContextVar

from flows.cli.checks import Tell, check_training, check_work
from flows.cli.commands import AuditOptions, PredictOptions, RunOptions
from flows.cli.options import FlowOptions, RecipeOptions
from storage.admin import runs
from storage.uri import URI, Root, check_name, parse_root
from tasks.images.option import default_recipe
from tasks.learning import downloading, recipes, sources, user_code
from tasks.learning.recipes import Recipe
from tasks.planning import audit_request, make_plan, model_check, model_requests
from tasks.planning.audit_request import AuditRequest
from tasks.planning.model_requests import BatchRequest
from tasks.planning.plan import Plan
from tasks.resources import machine
from tasks.resources.needs import Limits

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_MOST_S = 365 * _SECONDS["d"]
"""A year; the timers of Python, torch and Ray do not accept arbitrarily large values."""
_passed: ContextVar[Plan | BatchRequest | AuditRequest | None] = ContextVar("passed", default=None)
"""What a command has checked and planned, for the flow that it starts."""


@contextlib.contextmanager
def passing(request: Plan | BatchRequest | AuditRequest) -> Iterator[None]:
    """Let the flow that is called in the block carry out `request`, without planning it again."""
    token = _passed.set(request)
    try:
        yield
    finally:
        _passed.reset(token)


def ignore(name: str, found: str) -> None:
    """Tell nobody."""


def checked(options: RunOptions, tell: Tell = ignore) -> Plan:
    """Plan a run and check all that can be known before it starts; raise `ValueError` at the first failure.

    `tell` takes the name of each check that succeeded, and what it found.
    """
    if isinstance(passed := _passed.get(), Plan):
        return passed
    plan = _plan(options, check_request(options))
    tell("request", f"recipe {plan.recipe.name} {runs.changes_as_text(recipes.changes(plan.recipe))}".rstrip())
    check_training(plan, tell, is_thorough=options.check)
    check_work(plan, tell)
    return plan


def checked_again(options: FlowOptions, champion: URI, *, root: Root, registered_model: str) -> Plan:
    """Plan and check the run that is to replace `champion`, as `checked` does a run."""
    limits, workers = _limits(options), options.workers
    plan = make_plan.make_again(champion, root=root, registered_model=registered_model, workers=workers, limits=limits)
    check_training(plan, ignore)
    check_work(plan, ignore)
    return plan


def checked_prediction(options: PredictOptions) -> BatchRequest:
    if isinstance(passed := _passed.get(), BatchRequest):
        return passed
    machine.choose(options.cores)
    request = model_requests.resolve_prediction(
        storage=options.storage,
        model=options.model,
        data=options.data,
        split=options.split,
        min_confidence=options.min_confidence,
        max_distance=options.max_distance,
        no_drift=options.no_drift,
        workers=options.workers,
        limits=_limits(options),
    )
    check_work(request, ignore)
    return request


def checked_audit(options: AuditOptions) -> AuditRequest:
    if isinstance(passed := _passed.get(), AuditRequest):
        return passed
    request = plan_audit(options)
    check_training(request.plan, ignore)
    if user_code.is_reference(request.plan.recipe.model) and not request.is_done:
        model_check.check_model(request.plan, is_embedded=True)
    check_work(request, ignore)
    return request


def check_request(options: RunOptions) -> Recipe:
    """Return the recipe of a run with its settings; raise `ValueError` for what is wrong without a look at storage."""
    machine.choose(options.cores)
    make_plan.check_workers(options.workers)
    _limits(options)
    name = default_recipe(options.data) if options.recipe is None else options.recipe
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


def _plan(options: RunOptions, recipe: Recipe) -> Plan:
    return make_plan.make_plan(
        storage=options.storage,
        recipe=recipe,
        workers=options.workers,
        data=options.data,
        labels=options.labels,
        mirror=options.mirror,
        registered_model=options.register_as,
        judge_only=options.judge_only,
        refresh=options.refresh,
        limits=_limits(options),
    )


def plan_audit(options: AuditOptions) -> AuditRequest:
    """Plan an audit, without the checks; raise `ValueError` if the request is invalid."""
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
    if recipe.training.start.kind == "champion":
        raise ValueError("start must not be champion in an audit: that model was trained on these images; omit it")
    return audit_request.resolve(_plan(run, recipe))


def _limits(options: FlowOptions) -> Limits:
    stage_s = seconds(options.stage_timeout, option="--stage-timeout")
    if not isinstance(options, RecipeOptions):
        return Limits(stage_s=stage_s)
    return Limits(stage_s=stage_s, stall_s=seconds(options.stall_timeout, option="--stall-timeout"))


def seconds(text: str, *, option: str) -> float:
    """Return the seconds of a duration such as `30s`, `10m`, `2h` or `1d`; raise `ValueError` naming `option`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", str(text))
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds <= _MOST_S:
        raise ValueError(f"{option} must be a number with a unit (s, m, h, d), at most 365d, such as 10m, got {text!r}")
    return seconds
