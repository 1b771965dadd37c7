"""Make the plan of a run from a request, and report every invalid value before any work starts."""

import dataclasses
import os
from collections.abc import Sequence

from storage import access, champions, manifest, registry
from storage.admin.catalog import check_links
from storage.terminal import count
from storage.uri import DatasetURI, Root, check_name, parse_root
from tasks.jobs.deadline import deadline
from tasks.learning import sources
from tasks.learning.downloading import mirror_address
from tasks.learning.epoch_metrics import few_steps_hint
from tasks.learning.recipes import Recipe
from tasks.planning import model_check, warm_start
from tasks.planning.data_option import as_made, check_shift, resolve_data
from tasks.planning.plan import Plan
from tasks.planning.result_uris import report_of
from tasks.planning.user_images import UserImages, check_apart
from tasks.resources import devices, machine
from tasks.resources.scaling import Workers


def make_plan(
    *,
    storage: str,
    recipe: Recipe,
    workers: Workers = None,
    data: str | None = None,
    registered_model: str | None = None,
    mirror: Sequence[str] = (),
    judge_only: bool = False,
    refresh: bool = False,
    stage_timeout_s: float = 24 * 3600.0,
    stall_timeout_s: float = 600.0,
    download_timeout_s: float = 0.0,
) -> Plan:
    """Check a request and make the plan of its run.

    Raises `ValueError` naming the invalid value: a storage that is not writable, a number out of range, or a dataset
    that does not exist, does not match the recipe, or cannot be compared with the champion. Raises `DeadlineExceeded`
    if the checks take longer than the deadline of a stage.
    """
    check_workers(workers)
    check_batch_size(recipe, workers)
    with deadline(stage_timeout_s):
        root = check_root(storage)
        found = resolve_data(data, recipe) if data else None
        if found is None:
            check_shift(recipe, side=min(sources.load(recipe.data.source).image_shape[:2]))
        if isinstance(found, UserImages):
            check_apart(root, found.uri, option="--data")
        elif found is not None:
            recipe = as_made(recipe, found)
        plan = Plan(
            root=root,
            recipe=recipe,
            workers=workers,
            cores=machine.cores_asked(workers),
            data=found if isinstance(found, DatasetURI) else None,
            user_images=found if isinstance(found, UserImages) else None,
            register_as=check_name(registered_model, field="--register-as") if registered_model else None,
            mirrors=tuple(map(mirror_address, mirror)),
            judge_only=judge_only,
            stage_timeout_s=stage_timeout_s,
            stall_timeout_s=stall_timeout_s,
            download_timeout_s=download_timeout_s,
        )
        if recipe.training.start.kind == "champion":
            plan = dataclasses.replace(plan, initial=warm_start.initial_checkpoint(plan))
        warm_start.check_comparable(plan)
        plan = refreshed(plan) if refresh else plan
        model_check.check_rivals_code(plan)
        return plan


def check_training(plan: Plan) -> None:
    """Raise `ValueError` for what would end the training after minutes, but can be known now."""
    if manifest.is_committed(plan.checkpoint):
        return
    most, _ = num_train_rows(plan)
    batch_size = plan.recipe.training.batch_size
    if most is not None and batch_size > most:
        raise ValueError(
            f"batch_size must be at most the number of training rows, {most:,}, got {batch_size}; use a "
            "smaller --set batch_size"
        )
    is_local = plan.workers == 0 or not os.environ.get("RAY_ADDRESS")
    if plan.recipe.training.compile and is_local and (plan.recipe.resources.device == "cpu" or not machine.gpus()):
        devices.check_compiler(where="this machine")
    model_check.check_one_row(plan)


def num_train_rows(plan: Plan) -> tuple[int | None, int | None]:
    """Return the most training rows that there may be, and about how many; None until the data is read."""
    kept = 1 - plan.recipe.split.validation_fraction
    if manifest.is_committed(plan.raw):
        most = sum(file.rows or 0 for file in manifest.load(plan.raw).split("train"))
    elif plan.user_images is not None and plan.user_images.kind == "images":
        most = sum(file.split in ("train", "") for file in plan.user_images.files)
        kept *= 1 - (plan.user_images.test_fraction or 0)
    else:
        return None, None
    return most, round(most * kept)


def batch_hint(plan: Plan) -> str | None:
    """Return a hint if the batch is large for the number of rows as far as it is known; training counts them."""
    _, rows = num_train_rows(plan)
    if rows is None:
        return None
    size = plan.recipe.training.batch_size
    hint = few_steps_hint(rows // size, batch_size=size, num_rows=rows)
    return hint and f"with about {count(rows, 'training row')}, {hint}"


def check_root(storage: str) -> Root:
    """Return `storage` as a root; raise `ValueError` naming `--storage` if no files can be created there."""
    root = parse_root(storage)
    access.check_writable(root)
    check_links(root)
    return root


def default_storage() -> str:
    """Return the default storage root: $PIPELINE_STORAGE or ./data."""
    return os.environ.get("PIPELINE_STORAGE") or "./data"


def check_workers(workers: Workers) -> None:
    """Raise `ValueError` naming the option and its value if the number of workers is none."""
    if isinstance(workers, str):
        raise ValueError(f"--workers must be one whole number, got {workers!r}")
    if workers is not None and workers < 0:
        raise ValueError(f"--workers must be >= 0 (0 runs without Ray), got {workers}")


def check_batch_size(recipe: Recipe, workers: Workers) -> None:
    """Raise `ValueError` if a worker would get no row of a batch; training checks the number of rows."""
    if (batch_size := recipe.training.batch_size) < (workers or 0):
        raise ValueError(
            f"batch_size must be at least the number of workers, {workers}, got {batch_size}; use a larger "
            "--set batch_size or fewer --workers"
        )


def refreshed(plan: Plan) -> Plan:
    """Return `plan` as its first repetition, or as the last one if that was interrupted before its report."""
    judged = champions.judged(plan.root)  # decisions stay, while garbage collection deletes evaluations and reports
    last = None
    for refresh in range(1, len(judged) + 2):  # each has its own URI, so one of these is free
        repeated = dataclasses.replace(plan, refresh=refresh)
        if repeated.checkpoint.fingerprint not in judged:
            return last if last and _lacks_report(last) else repeated
        last = repeated
    raise AssertionError(f"--refresh did not change any URI: {plan.checkpoint} is the same for every attempt")


def _lacks_report(plan: Plan) -> bool:
    """Return whether the run decided on its model, but did not live to write its report, the last result of a run."""
    decisions = [one for one in registry.history(plan.root, plan.registered_model) if one.evaluation == plan.evaluation]
    if not decisions or not manifest.is_committed(plan.evaluation):
        return False
    return not any(manifest.is_committed(report_of(plan, one)) for one in decisions)
