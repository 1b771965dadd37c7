"""Where training starts: a file of weights, or a champion."""

import contextlib
from pathlib import Path
from typing import Any

from storage import access, files, manifest, registry
from storage.kinds import CHECKPOINT, CheckpointURI
from storage.uri import Root, parse_root
from tasks.learning import models
from tasks.learning.recipes import Recipe, flat
from tasks.learning.sources import Download, SourceFile
from tasks.learning.variants import Champion, start_to_text
from tasks.stages import Train


def initial_weights(recipe: Recipe) -> Download | None:
    """Return the file of weights that training starts from, published or the user's own; None for other starts.

    Raises `ValueError` if nothing is published for the model, or the user's file cannot be read.
    """
    start = recipe.training.start
    if start.kind == "pretrained":
        from tasks.learning import pretrained  # imports timm, which takes seconds

        pretrained.published(recipe.model)
        name = recipe.model.removeprefix(models.TIMM)
        file = SourceFile(name=f"{name}.safetensors", md5="", sha256="", model=recipe.model)
    elif start.kind == "file":
        uri, digest = parse_root(start.file, option="start"), None
        with access.errors_as_value_error(uri, option="start", verb="read"), contextlib.suppress(FileNotFoundError):
            files.entry(uri)  # a pipe is none, whose reading would block
            digest = files.sha256(uri)
        if digest is None:
            raise ValueError(f"start: there is no file {uri}; give one with --set start=FILE, or use start=random")
        copy = str(uri) if uri.is_s3 else Path(uri).as_uri()
        file = SourceFile(name=f"weights{Path(uri).suffix}", md5="", sha256=digest, copy=copy)
    else:
        return None
    return Download(name=f"weights-{models.in_names(recipe.model)}"[:50], files=(file,), mirrors=())


def initial_checkpoint(
    root: Root,
    registered_model: str,
    stage: Train,
    *,
    image_shape: tuple[int, ...] | None,
    classes: tuple[str, ...] | None,
) -> CheckpointURI:
    """Return the champion to start from, or that champion's own initial checkpoint if this request produced it.

    So the same request keeps its URIs after its model became champion. Raises `ValueError` if there is no champion, or
    if its model differs; of the run's own registered model also if its images, classes or split do: rows that it was
    trained on would become validation rows.
    """
    recipe, start = stage.recipe, stage.recipe.training.start
    assert isinstance(start, Champion)
    name = start.registered_model or registered_model
    option = f"--set start={start_to_text(vars(start))}"
    champion = registry.champion(root, name)
    if champion is None:
        raise ValueError(f"{option}: {root} has no champion of {name!r} yet; omit it the first time")
    if not (trained := manifest.find(champion)):
        raise ValueError(f"{option}: the champion {champion} does not exist any more; omit it, or restore the champion")
    recorded = trained.statistics_of(CHECKPOINT)
    before = vars(recorded.model) | vars(recorded.split)
    now: dict[str, Any] = {"model": recipe.model}
    if is_own := name == registered_model:
        now |= {"image_shape": image_shape, "classes": classes, **split_of(recipe)}
    for field, value in now.items():
        if value is not None and before[field] != value:
            raise ValueError(
                f"{option}: {field} of the champion {champion} is {before[field]!r}, but {value!r} is requested; omit "
                "it to start from other weights"
            )
    is_same = is_own and "initial" in trained.parents and trained.parameters == stage.values
    if is_same:  # its parameters do not say from which registered model's champion it started
        is_same = flat(recorded.recipe)["start"] in ("champion", f"champion:{registered_model}")
    if is_same and trained.parent("prepared", of=champion).name == stage.prepared.name:
        return CheckpointURI(trained.parent("initial", of=champion))
    return champion


def split_of(recipe: Recipe) -> dict[str, Any]:
    """Return what decides whether a row is a validation row, as prepared datasets and checkpoints record it."""
    split = {name: getattr(recipe.split, name) for name in ("split_seed", "validation_fraction", "group")}
    return split | {"store": recipe.data.store}  # a row's split depends on its stored bytes
