"""Make the plan of a run from a request, and report every invalid value before any work starts."""

import dataclasses
import functools
import os
import shlex
from collections.abc import Sequence

from storage import access, champions, kinds, manifest, registry
from storage.uri import URI, Root, check_name, parse_root
from tasks.jobs.deadline import deadline
from tasks.learning import recipes
from tasks.learning.downloading import mirror_address
from tasks.learning.recipes import Recipe
from tasks.learning.sources import Download
from tasks.planning import model_check, warm_start
from tasks.planning.data_option import TrainingData, find_files, find_training_data, is_needed
from tasks.planning.plan import (
    DownloadParameters,
    IngestParameters,
    Plan,
    PromoteParameters,
    ReportParameters,
    Timeouts,
)
from tasks.planning.result_uris import evaluation_of, predictions_of, result_of
from tasks.promotion import gate
from tasks.resources import machine
from tasks.resources.scaling import Workers, needs_of
from tasks.stages import PredictParameters, TrainParameters


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
    stage_timeout_s: float = Timeouts.stage_s,
    stall_timeout_s: float = Timeouts.stall_s,
) -> Plan:
    """Check a request, read storage once, and return the plan of its run.

    Raises `ValueError` naming the invalid value: a storage that is not writable, a number out of range, or a dataset
    that does not exist, does not match the recipe, or cannot be compared with the champion. Raises `DeadlineExceeded`
    if the checks take longer than the time limit of a stage.
    """
    check_workers(workers)
    with deadline(stage_timeout_s):
        root = check_root(storage)
        plan_once = functools.partial(
            _plan,
            root=root,
            data=find_training_data(root, recipe, data),
            weights=warm_start.initial_weights(recipe),
            workers=workers,
            register_as=check_name(registered_model, field="--register-as") if registered_model else None,
            mirrors=tuple(map(mirror_address, mirror)),
            judge_only=judge_only,
            timeouts=Timeouts(stage_s=stage_timeout_s, stall_s=stall_timeout_s),
        )
        if refresh:  # the first repetition without a decision: a new one, or one that was interrupted
            judged = champions.judged(root)  # decisions stay, while garbage collection deletes evaluations and reports
            plans = (plan_once(refresh=number) for number in range(1, len(judged) + 2))  # each has its own URI
            plan = next(plan for plan in plans if plan.checkpoint.fingerprint not in judged)
        else:
            plan = plan_once(refresh=0)
        model_check.check_rival(plan)
        return plan


def check_root(storage: str) -> Root:
    """Return `storage` as a root; raise `ValueError` naming `--storage` if no files can be created there."""
    root = parse_root(storage)
    access.check_writable(root)
    return root


def default_storage() -> str:
    """Return the default storage root: $PIPELINE_STORAGE or ./data."""
    return os.environ.get("PIPELINE_STORAGE") or "./data"


def check_workers(workers: Workers) -> None:
    """Raise `ValueError` naming the option and its value if the number of workers is none."""
    if workers is not None and workers < 0:
        raise ValueError(f"--workers must be >= 0 (0 runs without Ray), got {workers}")


def _plan(
    *,
    root: Root,
    data: TrainingData,
    weights: Download | None,
    workers: Workers,
    register_as: str | None,
    mirrors: tuple[str, ...],
    judge_only: bool,
    refresh: int,
    timeouts: Timeouts,
) -> Plan:
    """Read what storage holds, from the raw dataset to the champion, and name the results after it."""
    recipe, registered_model = data.recipe, register_as or data.default_model
    raw = data.find_raw(root, refresh=refresh)
    files = data.find_files(root, raw, refresh=refresh)
    image_shape, classes = data.images(raw)
    preprocess = recipe.preprocess_parameters()
    if data.raw and refresh:  # it is not made again: its repetition starts with preprocessing
        preprocess["refresh"] = refresh
    prepared = result_of(kinds.PREPARED, root, name=raw.name.rpartition("-")[0], parents=[raw], parameters=preprocess)

    cores = machine.cores_asked(workers)  # the number of threads changes the order of summation
    scale = ({} if workers is None else {"workers": workers}) | ({"cores": cores} if cores else {})
    values = recipe.training_parameters() | {"workers": "auto"} | scale
    initial = None
    if recipe.training.start.kind == "champion":
        initial = warm_start.initial_checkpoint(
            root, registered_model, recipe, prepared, values, image_shape=image_shape, classes=classes
        )
    stored = find_files(root, weights) if weights else None
    checkpoint = result_of(
        kinds.CHECKPOINT,
        root,
        name=f"{data.name}-{recipes.title(recipe)}" if data.is_user_images else recipes.title(recipe),
        parents=[prepared, *([initial] if initial else []), *([stored] if stored else [])],
        parameters=values,
    )
    if stored and not is_needed(stored, child=checkpoint):
        weights = None
    predictions = predictions_of(root, checkpoint, prepared, split="test")
    evaluation = evaluation_of(root, predictions)

    gate_settings = gate.settings_of(recipe, judge_only=judge_only)
    place = data.user_images.uri if data.user_images else data.raw
    decisions = registry.history(root, registered_model)
    rival = gate.rival_of(checkpoint, decisions)
    of_rival = [predictions_of(root, rival, prepared, split="test")] if rival else []
    uses = [files, raw, prepared, initial, stored, checkpoint, predictions, evaluation, rival]
    uses += [uri for each in of_rival for uri in (each, evaluation_of(root, each))]
    on_ray: list[URI] = [prepared, checkpoint, predictions, *of_rival]
    on_ray += [raw] if data.user_images is not None and data.user_images.is_large else []

    needs = dataclasses.replace(needs_of(recipe), batch_size=None)  # a batch of training does not limit prediction
    predict = PredictParameters(split="test", workers=workers, needs=needs)
    return Plan(
        root=root,
        recipe=recipe,
        needs_ray=not all(map(manifest.is_committed, on_ray)),
        registered_model=registered_model,
        image_shape=image_shape,
        classes=classes,
        files=files,
        raw=raw,
        prepared=prepared,
        checkpoint=checkpoint,
        predictions=predictions,
        evaluation=evaluation,
        rival=rival,
        uses=tuple(uri for uri in uses if uri is not None),
        download=DownloadParameters(name=data.name, source=data.source, weights=weights, mirrors=mirrors),
        ingest=IngestParameters(
            name=data.name,
            values=data.ingest_values(),
            source=data.source,
            source_name=recipe.data.source,
            user_images=data.user_images,
        ),
        preprocess=preprocess,
        train=TrainParameters(recipe=recipe, parameters=values, initial=initial, weights=stored, workers=workers),
        predict=predict,
        promote=PromoteParameters(registered_model=registered_model, gate=gate_settings, predict=predict),
        report=ReportParameters(
            recipe_name=recipes.title(recipe),
            data_name=data.name,
            values=recipes.flat(recipe.to_dict()) | {"workers": "auto"} | scale,
            changes=recipes.changes(recipe) | scale,
            command=_command(recipe, place, register_as, workers, cores),
            registered_model=registered_model,
            register_as=register_as,
        ),
        timeouts=timeouts,
    )


def _command(recipe: Recipe, data: URI | None, register_as: str | None, workers: Workers, cores: int) -> str:
    """Return the command that reproduces the same URIs in another storage root; no `--refresh`, which changes them."""
    words = ["python", "flows/pipeline.py", "--recipe", recipe.origin or recipe.name]
    for name, value in recipes.changes(recipe).items():
        words += ["--set", f"{name}={value}"]
    words += ["--data", str(data)] if data else []
    words += ["--register-as", register_as] if register_as else []
    words += ["--workers", str(workers)] if workers is not None else []
    words += ["--cores", str(cores)] if cores else []
    return shlex.join(words)
