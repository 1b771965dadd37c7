"""Checks of a planned request, in order: a new one is a line of `check_training` or `check_work`."""

import textwrap
from collections.abc import Callable
from typing import TypeAlias

from storage import manifest
from storage.admin import runs
from tasks.learning import downloading, recipes, sources, user_code
from tasks.learning.models import LITE0
from tasks.planning import data_summary, model_check
from tasks.planning.audit_request import AuditRequest
from tasks.planning.model_requests import BatchRequest
from tasks.planning.plan import Plan
from tasks.resources import capacity
from tasks.runners.nodes import check_nodes

Tell: TypeAlias = Callable[[str, str], object]
"""Takes the name of a check that succeeded, and what it found, a line per fact."""

_WIDTH = 100


def check_training(plan: Plan, tell: Tell, *, is_thorough: bool = False) -> None:
    """Check a training, but not what it runs on; raise `ValueError` at the first failure.

    `is_thorough` is for `--check`, which looks for everything that can be known, although that takes seconds.
    """
    tell("storage", str(plan.root))
    tell("data", _data(plan))
    classes, labels = data_summary.of_plan(plan)  # of Parquet it reads all labels
    tell("classes", classes)
    tell("labels", labels)
    if is_thorough:
        if plan.ingest and plan.ingest.listing:
            from tasks.planning import image_check  # pandas and decoders

            tell("images", image_check.check_images(plan))
        fields = recipes.flat(plan.recipe.to_dict())
        settings = runs.changes_as_text({name: fields[name] for name in recipes.names() if name in fields})
        tell("recipe", "\n".join(textwrap.wrap(settings, _WIDTH)))
        tell("run", _to_do(plan))
    model_check.check_training(plan)
    is_other = plan.recipe.has_probe and plan.recipe.model != LITE0  # which may have a head that no probe fits
    is_built = is_thorough or (plan.needs_ray and (is_other or user_code.is_reference(plan.recipe.model)))
    tell("model", model_check.check_model(plan) if is_built else plan.recipe.model)


def check_work(request: Plan | BatchRequest | AuditRequest, tell: Tell) -> None:
    """Check what the jobs of a request need, if there are any; raise `ValueError` at the first failure."""
    if request.needs_ray:
        tell("Ray", capacity.check_workers(request.needs))
        tell("disk", capacity.check_disk(request.root))
        tell("nodes", check_nodes(request.root, request.needs))


def _data(plan: Plan) -> str:
    """Say where the data comes from; raise `ValueError` if what is to be downloaded cannot be reached."""
    if plan.weights and (model := plan.weights.files[0].model) and not manifest.is_committed(plan.weights.target):
        from tasks.learning import pretrained  # torch

        try:
            pretrained.read_published(model)  # timm downloads into its cache
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


def _to_do(plan: Plan) -> str:
    to_do = [stage for stage in plan.stages if not manifest.is_committed(stage.target)]
    names = ["download weights" if stage is plan.weights else stage.kind.stage for stage in to_do]
    return f"to do: {', '.join(names)}" if names else "all results exist and will be reused"
