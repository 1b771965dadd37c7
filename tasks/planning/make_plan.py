"""Make the plan of a run from a request, and report every invalid value before any work starts."""

import functools
import os
from collections.abc import Sequence
from typing import Any

from storage import access, champions, manifest, registry
from storage.kinds import CHECKPOINT, CheckpointURI
from storage.uri import URI, Root, check_name, parse_root
from tasks.images import user_images
from tasks.images.option import TrainingData, find_training_data, images_of, ingest_stage, is_needed
from tasks.learning import models, recipes, sources
from tasks.learning.downloading import mirror_address
from tasks.learning.recipes import Recipe
from tasks.planning import model_check, warm_start
from tasks.planning.plan import Plan
from tasks.promotion import gate
from tasks.resources import machine
from tasks.resources.needs import Limits, Workers
from tasks.stages import Download, Embed, Evaluate, Predict, Preprocess, Stage, Train


def make_plan(
    *,
    storage: str,
    recipe: Recipe,
    workers: Workers = None,
    data: str | None = None,
    labels: str | None = None,
    registered_model: str | None = None,
    mirror: Sequence[str] = (),
    judge_only: bool = False,
    refresh: bool = False,
    limits: Limits = Limits(),
) -> Plan:
    """Check a request, read storage once, and return the plan of its run.

    Raises `ValueError` naming the invalid value: a storage that is not writable, a number out of range, or a dataset
    that does not exist, does not match the recipe, or cannot be compared with the champion.
    """
    check_workers(workers)
    root = check_root(storage)
    plan_once = functools.partial(
        _plan,
        root=root,
        data=find_training_data(root, recipe, data, labels=labels),
        weights=warm_start.initial_weights(recipe),
        workers=workers,
        register_as=check_name(registered_model, field="--register-as") if registered_model else None,
        mirrors=tuple(map(mirror_address, mirror)),
        judge_only=judge_only,
        limits=limits,
    )
    if refresh:  # the first repetition without a decision: a new one, or one that was interrupted
        judged = champions.judged(root)  # decisions stay, while garbage collection deletes evaluations and reports
        plans = (plan_once(refresh=number) for number in range(1, len(judged) + 2))  # each has its own URI
        plan = next(plan for plan in plans if plan.train.target.fingerprint not in judged)
    else:
        plan = plan_once(refresh=0)
    model_check.check_rival(plan)
    return plan


def again(
    checkpoint: URI,
    *,
    root: Root,
    registered_model: str,
    data: str | None = None,
    workers: Workers = None,
    limits: Limits = Limits(),
) -> Plan:
    """Plan the run of `checkpoint` again below `root`, on its images as they are now.

    `data` is where they are now, or a mirror of a source; `workers` counts if the number is not recorded. Raises
    `ValueError` as `make_plan` does, and if training would begin with a champion.
    """
    trained = manifest.load(checkpoint)
    recorded, prepared = trained.statistics_of(CHECKPOINT).recipe, trained.parent("prepared", of=checkpoint)
    raw = manifest.load(manifest.load(prepared).parent("raw", of=prepared))
    recipes.load(recorded["origin"] or recorded["name"])  # it may be code of the user's own
    recipe = recipes.from_dict(recorded)
    if recipe.training.start.kind == "champion":
        raise ValueError("start must not be champion, whose weights may have learned from other images")
    machine.choose(trained.parameters.get("cores"))
    place = champions.location_of(raw)
    return make_plan(
        storage=root,
        recipe=recipe,
        workers=trained.parameters.get("workers", workers),
        data=place and (data or place),
        labels=champions.label_table_of(raw),
        mirror=[data] if data and not place else [],
        registered_model=registered_model,
        limits=limits,
    )


def make_again(champion: URI, *, root: Root, registered_model: str, workers: Workers, limits: Limits) -> Plan:
    """Plan the run of `champion` again, to replace it whatever the gate says; raise `ValueError` as `again` does."""
    try:
        plan = again(champion, root=root, registered_model=registered_model, workers=workers, limits=limits)
    except ValueError as error:
        raise ValueError(
            f"FILE: {champion}, champion of {registered_model}, cannot be made again without it: {error}; or promote "
            "a model that was not made of it: data-to-model promote URI"
        ) from None
    return plan.model_copy(update={"rival": None, "replaces": CheckpointURI(champion)})


def check_root(storage: str) -> Root:
    """Return `storage` as a root; raise `ValueError` naming `--storage` if no files can be created there."""
    root = parse_root(storage)
    access.check_writable(root)
    return root


def default_storage() -> str:
    return os.environ.get("PIPELINE_STORAGE") or "./data"


def check_workers(workers: Workers) -> None:
    """Raise `ValueError` naming the option and its value if the number of workers is none."""
    if workers is not None and workers < 0:
        raise ValueError(f"--workers must be >= 0 (0 runs without Ray), got {workers}")


def _plan(
    *,
    root: Root,
    data: TrainingData,
    weights: sources.Download | None,
    workers: Workers,
    register_as: str | None,
    mirrors: tuple[str, ...],
    judge_only: bool,
    refresh: int,
    limits: Limits,
) -> Plan:
    """Read what storage holds, and build each stage from the target of the one before."""
    registered_model = register_as or data.default_model
    download = Download.of(data.source, root, mirrors=mirrors, refresh=refresh) if data.source else None
    stored = Download.of(weights, root, mirrors=mirrors) if weights else None
    files = user_images.write(root, data.user_images) if data.user_images else download and download.target
    ingested = functools.partial(ingest_stage, files, data.recipe.data, refresh=refresh) if files else None
    ungrouped, grouping, groups = None, None, None
    if data.recipe.split.group == "near-duplicates":
        assert stored, "checked by the recipe"
        ungrouped = ingested() if ingested else None
        alone = ungrouped.target if ungrouped else data.raw
        grouping = Embed(root=root, raw=alone, model=data.recipe.model, start=stored.target)
        groups = grouping.target
    ingest = ingested(group=data.recipe.split.group, embeddings=groups) if ingested else None
    raw = data.raw or (ingest and ingest.target)
    assert raw
    repetition = refresh if data.raw else 0  # an existing raw dataset is not made again
    preprocess = Preprocess(root=root, raw=raw, split=data.recipe.split, embeddings=groups, refresh=repetition)
    train = Train(
        prepared=preprocess.target,
        recipe=data.recipe,
        start=stored.target if stored else None,
        workers=workers,
        cores=machine.cores_asked(workers) or None,  # the number of threads changes the order of summation
    )
    if data.recipe.training.start.kind == "champion":
        shape, classes = images_of(ingest, raw)
        start = warm_start.initial_checkpoint(root, registered_model, train, image_shape=shape, classes=classes)
        train = train.model_copy(update={"start": start})
    embed = None
    if data.recipe.has_probe:
        embed = Embed(prepared=preprocess.target, model=data.recipe.model, start=train.start)
        train = train.model_copy(update={"embeddings": embed.target})
    by_model, model, kind = None, data.recipe.model, data.recipe.training.start.kind
    # A start from weights looks for the one head, before whose last layer embeddings are taken.
    has_head = model in models.PROJECT or (model.startswith(models.TIMM) and kind != "random")
    if not train.embeddings and data.recipe.data.source == sources.USER_IMAGES and has_head:
        by_model = Embed(prepared=preprocess.target, model=data.recipe.model, start=train.target)
    embeddings = by_model.target if by_model else train.embeddings
    predict = Predict(checkpoint=train.target, dataset=preprocess.target, split="test", embeddings=embeddings)
    plan = Plan(
        root=root,
        data=data.place,
        labels=data.user_images.table if data.user_images else "",
        download=download if download and is_needed(download.target, child=raw) else None,
        weights=stored
        if stored and any(is_needed(stored.target, child=stage.target) for stage in (grouping, embed, train) if stage)
        else None,
        ungrouped=ungrouped,
        grouping=grouping,
        ingest=ingest,
        preprocess=preprocess,
        embed=embed,
        train=train,
        embed_by_model=by_model,
        predict=predict,
        evaluate=Evaluate(predictions=predict.target),
        registered_model=registered_model,
        register_as=register_as,
        judge_only=judge_only,
        rival=gate.rival_of(train.target, registry.history(root, registered_model)),
        needs_ray=False,
        limits=limits,
    )
    on_ray: list[Stage[Any]] = [preprocess, *filter(None, [grouping, embed, by_model]), train]
    on_ray += [predict, *plan.of_rival[:1]]
    if data.user_images and data.user_images.is_large:
        on_ray += filter(None, [ungrouped, ingest])
    is_missing = any(not manifest.is_committed(stage.target) for stage in on_ray)
    return plan.model_copy(update={"needs_ray": is_missing})
