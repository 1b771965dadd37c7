"""Checks of a planned request: a new one is a function and a line in `CHECKS`, for runs, predictions and audits."""

import dataclasses
import functools
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from storage import manifest
from storage.admin import runs
from tasks.learning import recipes, user_code
from tasks.resources import capacity
from tasks.runners.nodes import check_nodes

if TYPE_CHECKING:
    from tasks.planning.audit_request import AuditRequest
    from tasks.planning.plan import Plan
    from tasks.planning.predict_request import BatchRequest

_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Checked:
    """A planned request, for the checks."""

    request: "Plan | BatchRequest | AuditRequest"
    training: "Plan | None"
    """The plan of the run, or of the run that an audit is derived from; None for a prediction."""
    is_thorough: bool
    """Whether to look for everything that can be known, as `--check` does, although that takes seconds."""

    @functools.cached_property
    def classes_and_labels(self) -> tuple[str, str]:
        """What the classes are, and where the labels are from; empty for a prediction."""
        if self.training is None:
            return "", ""
        from tasks.planning import data_summary

        return data_summary.of_plan(self.training)  # of Parquet it reads all labels


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
    return checked.classes_and_labels[0]


def _labels(checked: Checked) -> str:
    return checked.classes_and_labels[1]


def _images(checked: Checked) -> str:
    plan = checked.training
    if not (checked.is_thorough and plan and plan.ingest and plan.ingest.listing):
        return ""
    from tasks.planning import image_check

    return image_check.check_images(plan)


def _recipe(checked: Checked) -> str:
    if not checked.training or not checked.is_thorough:
        return ""
    fields = recipes.flat(checked.training.recipe.to_dict())
    settings = runs.changes_as_text({name: fields[name] for name in recipes.names() if name in fields})
    return "\n".join(textwrap.wrap(settings, _WIDTH))


def _to_do(checked: Checked) -> str:
    if (plan := checked.training) is None or not checked.is_thorough:
        return ""
    to_do = [stage for stage in plan.stages if not manifest.is_committed(stage.target)]
    names = ["download weights" if stage is plan.weights else stage.kind.stage for stage in to_do]
    return f"to do: {', '.join(names)}" if names else "all results exist and will be reused"


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
"""All checks with their names, in order. `preflight.check_request` checks what needs no storage."""
