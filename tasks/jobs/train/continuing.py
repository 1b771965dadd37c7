"""More epochs after the end: a training begins where a finished one with fewer epochs left its constant learning rate.

Until then neither the learning rate nor the random numbers depend on the number of epochs, so a training from the start
gives the same bytes. No torch here, whose import takes seconds.
"""

import dataclasses
import json
from collections.abc import Iterator

from storage import files, manifest, reference
from storage.kinds import CheckpointURI
from storage.manifest import Damaged, Manifest
from storage.terminal import count
from tasks.jobs import events
from tasks.jobs.train import attempts
from tasks.jobs.train.attempts import CONTINUES, KEPT
from tasks.learning import checkpoint
from tasks.learning.checkpoint import FILES, META, Meta
from tasks.stages import Train


def begin(stage: Train, prepared: Manifest, *, workers: int) -> None:
    """Copy the state of a finished training with fewer epochs, if there is one, to where the first attempt resumes.

    Says in one line where it begins, or why it starts again.
    """
    if max(attempts.numbers(stage.scratch), default=0) > 0:
        return  # an earlier attempt has begun
    trained_on = attempts.trained_on(stage, prepared)
    for uri in _finished(stage):
        try:
            line = _copy(uri, stage, trained_on=trained_on, workers=workers)
        except (FileNotFoundError, Damaged) as error:  # the bytes are the same without it
            line = _again(uri, str(error))
        if line:
            events.write_line(line)
            return


def _finished(stage: Train) -> Iterator[CheckpointURI]:
    """Yield the finished trainings that differ from `stage` in having fewer epochs, the one with most epochs first."""
    training, names = stage.recipe.finetuning, set(files.children(stage.target.parent))
    for epochs in range(training.epochs - 1, max(0, training.freeze_epochs - 1), -1):
        fewer = dataclasses.replace(stage.recipe, training=dataclasses.replace(training, epochs=epochs))
        target = stage.model_copy(update={"recipe": fewer}).target
        if target.name in names and manifest.is_committed(target):
            yield target


def _copy(uri: CheckpointURI, stage: Train, *, trained_on: str, workers: int) -> str:
    """Copy what the training at `uri` kept; return a line for the log, empty if it kept nothing."""
    if not stage.recipe.finetuning.constant_epochs:
        return _again(uri, "the learning rate depends on the number of epochs without schedule=warmup-constant-decay")
    result, folder = manifest.load(uri), stage.scratch.child("attempt-0")
    epochs = sorted({file.path.split("/")[1] for file in result.files_of(f"{KEPT}/")})
    for epoch in epochs:
        stored = {name: result.files_of(f"{KEPT}/{epoch}/{name.partition('.')[0]}-") for name in FILES}
        content = {name: manifest.read_file(uri, file) for name, (file,) in stored.items()}
        meta = Meta.model_validate_json(content.pop(META))
        if meta.resolved.workers != workers:
            return _again(uri, f"it used {count(meta.resolved.workers, 'worker')}, and this training uses {workers}")
        if meta.prepared != trained_on:
            return _again(uri, "its dataset has been made again since then, with other bytes")
        meta = meta.model_copy(update={"parameters": stage.values, "recipe": stage.recipe.to_dict()})
        checkpoint.write(folder.child(epoch), meta, content)
    if not epochs:
        return ""
    source = {"checkpoint": reference.of(uri, root=stage.storage), "digest": result.digest, "epoch": meta.epoch}
    files.put(folder.child(CONTINUES), json.dumps(source, indent=1).encode())
    return f"continues {uri.name} after its epoch {meta.epoch}, the last one before the decay of its learning rate"


def _again(uri: CheckpointURI, why: str) -> str:
    return f"trains all epochs, also the ones of {uri.name}: {why}"
