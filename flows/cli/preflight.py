"""Checks before a run starts, the same for a typed run, `--check` and a deployment; they stop at the first failure."""

import re
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

from flows.cli.options import PredictOptions, RunOptions
from storage import manifest
from storage.admin import runs
from storage.uri import URI, Root, check_name, parse_root
from tasks.learning import recipes, user_code
from tasks.learning.recipes import Recipe
from tasks.resources import capacity, machine, scaling
from tasks.resources.scaling import ANY, Needs, Workers
from tasks.runners.nodes import check_nodes

if TYPE_CHECKING:
    from tasks.planning.plan import Plan
    from tasks.planning.predict_request import BatchRequest

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_MOST_S = 365 * _SECONDS["d"]
"""A year; the timers of Python, torch and Ray do not accept arbitrarily large values."""
Tell = Callable[[str, str], object]
"""Takes the name of a check that succeeded, and in words what it found, a line per fact."""
_WIDTH = 100


def ignore(name: str, found: str) -> None:
    """Tell nobody."""


def check_request(options: RunOptions) -> Recipe:
    """Check what is known without access to storage; return the recipe with the settings of the request."""
    from tasks.learning import downloading
    from tasks.planning import make_plan
    from tasks.planning.data_option import default_recipe

    name = default_recipe(options.data, storage=options.storage) if options.recipe is None else options.recipe
    recipe = recipes.override(recipes.load(name), options.settings)
    machine.choose(options.cores)
    make_plan.check_workers(options.workers)
    for name in ("stage_timeout", "stall_timeout"):
        _seconds(getattr(options, name), option=f"--{name.replace('_', '-')}")
    if options.register_as:
        check_name(options.register_as, field="--register-as")
    for mirror in options.mirror:
        downloading.mirror_address(mirror)
    if options.data is not None:
        parse_root(options.data, option="--data")
    if options.data and options.mirror:
        raise ValueError("--data cannot be combined with --mirror, because nothing is downloaded")
    return recipe


def plan_run(options: RunOptions, tell: Tell = ignore) -> "Plan":
    """Plan a run after all checks but those of Ray; raise `ValueError` if the request is invalid."""
    from tasks.planning import data_summary, image_check, make_plan, model_check

    recipe = check_request(options)
    tell("request", f"recipe {recipe.name} {runs.changes_as_text(recipes.changes(recipe))}".rstrip())
    plan = make_plan.make_plan(
        storage=options.storage,
        recipe=recipe,
        workers=options.workers,
        data=options.data,
        mirror=options.mirror,
        registered_model=options.register_as,
        judge_only=options.judge_only,
        refresh=options.refresh,
        stage_timeout_s=_seconds(options.stage_timeout, option="--stage-timeout"),
        stall_timeout_s=_seconds(options.stall_timeout, option="--stall-timeout"),
    )
    tell("storage", plan.root)
    tell("data", _find_data(plan))
    for name, line in zip(("classes", "labels"), data_summary.of_plan(plan), strict=True):
        tell(name, line)
    if options.check:
        if plan.ingest.user_images:
            tell("images", image_check.check_images(plan))
        fields = recipes.flat(plan.recipe.to_dict())
        settings = runs.changes_as_text({name: fields[name] for name in recipes.names() if name in fields})
        tell("recipe", "\n".join(textwrap.wrap(settings, _WIDTH)))
        tell("run", describe_run(plan))
    model_check.check_training(plan)
    is_built = options.check or (plan.needs_ray and user_code.is_reference(plan.recipe.model))
    tell("model", model_check.check_model(plan) if is_built else plan.recipe.model)
    return plan


def check_and_plan(options: RunOptions, tell: Tell = ignore) -> "Plan":
    """Check the request of a run, typed or of a deployment, and plan it; raise `ValueError` if it is invalid."""
    plan = plan_run(options, tell)
    if plan.needs_ray:
        check_ray(plan.root, options.workers, scaling.needs_of(plan.recipe), tell)
    return plan


def check_ray(root: Root, workers: Workers, needs: Needs = ANY, tell: Tell = ignore) -> None:
    """Check this machine, or the cluster that RAY_ADDRESS names, for a run in which a stage that needs Ray is missing.

    Raises `ValueError` if it has too few resources, its disk is full, or a node is unfit.
    """
    tell("Ray", capacity.check_workers(workers, needs))
    tell("disk", capacity.check_disk(root))
    tell("nodes", check_nodes(root, workers, needs))


def check_prediction(options: PredictOptions) -> "BatchRequest":
    """Check the request of a prediction, typed or of a deployment; raise `ValueError` if it is invalid."""
    from tasks.planning import predict_request

    machine.choose(options.cores)
    request = predict_request.resolve(
        storage=options.storage,
        model=options.model,
        data=options.data,
        split=options.split,
        min_confidence=options.min_confidence,
        workers=options.workers,
        stage_timeout_s=_seconds(options.stage_timeout, option="--stage-timeout"),
    )
    if request.needs_ray:
        check_ray(request.root, options.workers)
    return request


def _find_data(plan: "Plan") -> str:
    """Say where the data comes from; raise `ValueError` if what is to be downloaded cannot be reached."""
    from tasks.learning import downloading, pretrained

    weights = plan.download.weights
    if weights and weights.files[0].model and not (plan.train.weights and manifest.is_committed(plan.train.weights)):
        try:
            pretrained.read_published(weights.files[0].model)  # timm downloads into its cache
        except downloading.DownloadFailed as error:
            raise ValueError(str(error)) from None
    if images := plan.ingest.user_images:
        return "\n".join([f"{len(images.files):,} files in {images.uri}", *map(str, images.left_out), *images.notes])
    if results := [uri for uri in (plan.raw, plan.files) if uri and manifest.is_committed(uri)]:
        return f"{results[0]} exists"
    source, mirrors = plan.download.source, plan.download.mirrors
    assert source, "a raw dataset of user images exists"
    downloading.check_reachable(source, mirrors)
    return source.notice or f"a mirror of {source.name} responds"


def describe_run(plan: "Plan") -> str:
    """Describe a run: the stages to do."""
    is_read = plan.download.source is None or manifest.is_committed(plan.raw)
    results: list[tuple[str, URI | None]] = [
        ("download weights", plan.train.weights if plan.download.weights else None),
        ("download", None if is_read else plan.files),
        ("ingest", plan.raw),
        ("preprocess", plan.prepared),
        ("train", plan.checkpoint),
        ("predict", plan.predictions),
        ("evaluate", plan.evaluation),
    ]
    to_do = [stage for stage, uri in results if uri and not manifest.is_committed(uri)]
    return f"to do: {', '.join(to_do)}" if to_do else "all results exist and will be reused"


def _seconds(text: str, *, option: str) -> float:
    """Return the seconds of a duration such as `30s`, `10m`, `2h` or `1d`; raise `ValueError` naming `option`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", str(text))
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds <= _MOST_S:
        raise ValueError(f"{option} must be a number with a unit (s, m, h, d), at most 365d, got {text!r}; use 10m")
    return seconds
