"""Parents of results whose bytes have changed."""

import re
import shutil
from functools import partial
from typing import Any

from tests.faults.case import Case, Failed
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
    stopped = case.start()
    case.expect_refusal(stopped, "was made from other bytes than", "rm -r")
    for folder in re.findall(r"rm -r (\S+)", stopped.log.read_text()):  # so does this one
        shutil.rmtree(folder, ignore_errors=True)
    return case.finish()
