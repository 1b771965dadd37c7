"""Parents of results: their bytes have changed, or the root has moved."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from storage import manifest
from storage.__main__ import main
from storage.uri import URI
from tests.faults.case import Case, Failed
from tests.faults.harness import WORKERS
from tests.faults.history import checkpoint_of
from tests.faults.kinds.register import kind
from tests.faults.kinds.stored import truncate

_OLDER_CPU = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""Has torch compute as on a machine that knows fewer instructions: the same training comes to other weights."""


@kind("checkpoint removed and trained again on another machine")
def _trained_again(case: Case) -> dict[str, Any]:
    """Predictions, evaluation and report of the damaged one are there, and are not those of the new one."""
    usual = case.golden
    case.train_with(workers=WORKERS, env=_OLDER_CPU)
    if case.golden.weights == usual.weights:
        raise Failed("the other machine computes the same")
    case.begin(after="report")
    (weights,) = case.paths("checkpoints/*/weights-*")
    case.damage(partial(truncate, weights), what=weights.name)
    case.expect_refusal(case.start(), "restore it", "run again")
    shutil.rmtree(weights.parent)  # as the message says
    return case.finish()


@kind("a model of the same name in two roots")
def _same_name_in_two_roots(case: Case) -> None:
    """Predictions of the other root's model are asked for where those of this root's model are."""
    case.begin(after="prepared")
    case.env = _OLDER_CPU
    theirs = case.finish()["uris"]
    _move(case, f"{case.root}-other")
    model, expected = (
        URI(case.root).child(theirs[name].removeprefix(f"{case.harness.disk}/"))
        for name in ("checkpoint", "predictions")
    )
    case.begin(after="report")
    case.once.touch()
    case.arguments = ["--model", model, "--data", str(case.paths("datasets/prepared/*")[0]), "--split", "test"]
    case.arguments += ["--storage", case.root, "--json"]
    predicted = case.expect_recovery(case.start(script="predict.py"))["uris"]["predictions"]
    usual, (others, files) = case.golden.predictions, (_files(URI(uri)) for uri in (expected, predicted))
    shutil.rmtree(model.parent.parent)
    if files != others or files == usual:
        raise Failed(f"{predicted} are not the predictions of {model}")


def _files(predictions: URI) -> list[list[Any]]:
    return [[file.path, file.sha256, file.rows] for file in manifest.load(predictions).files]


@kind("root moved in mid-training")
def _root_moved(case: Case) -> dict[str, Any]:
    """The flow is killed, the root renamed, the command given there; in the end it is renamed once more."""
    case.begin(after="prepared")
    run = case.start()
    case.reaches(run, checkpoint_of(1), "epoch 1 is safe")
    case.kill_flow(run)
    _move(case, f"{case.root}-moved")
    case.expect_resumed_at_epoch_2(case.finish())
    _move(case, str(case.harness.disk))
    result = case.finish()
    case.expect_decisions(1)  # the champion is known again
    for words in (["lineage", result["uris"]["report"]], ["verify", "--deep", "--storage", case.root]):
        if main(words):
            raise Failed(f"data-to-model {words[0]} finds something missing")
    return result


def _move(case: Case, place: str) -> None:
    shutil.rmtree(place, ignore_errors=True)
    Path(case.root).rename(place)
    case.root = URI(place)
