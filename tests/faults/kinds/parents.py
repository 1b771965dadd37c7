"""Parents of results: their bytes have changed, or the root has moved."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from storage.__main__ import main
from storage.uri import URI
from tests.faults.case import Case, Failed
from tests.faults.history import checkpoint_of
from tests.faults.kinds.register import kind
from tests.faults.kinds.stored import truncate

_OLDER_CPU = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""Has torch compute as on a machine that knows fewer instructions: the same training comes to other weights."""


@kind("checkpoint removed and trained again on another machine")
def _trained_again(case: Case) -> dict[str, Any]:
    """Predictions, evaluation and report of the damaged one are there, and are not those of the new one."""
    case.begin(after="report", env=_OLDER_CPU)
    if case.golden.weights == case.harness.golden.weights:
        raise Failed("the other machine computes the same")
    (weights,) = case.paths("checkpoints/*/weights-*")
    case.damage(partial(truncate, weights), what=weights.name)
    case.expect_refusal(case.start(), "restore it", "run again")
    shutil.rmtree(weights.parent)  # as the message says
    return case.finish()


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
