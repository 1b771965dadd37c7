"""Work resumed on another kind of machine: the stage restarts, so that no result mixes the two."""

from collections.abc import Callable
from typing import Any

from storage import manifest
from storage.uri import URI
from tests.faults.case import Case, Failed
from tests.faults.history import Event, checkpoint_of
from tests.faults.kinds.register import kind
from tests.faults.kinds.resumption import kill_flow

_ELSEWHERE = {"ATEN_CPU_CAPABILITY": "default"}
"""torch then computes as on a CPU with fewer instructions, and comes to other bits."""


@kind("training resumed on another kind of machine")
def _training_elsewhere(case: Case) -> dict[str, Any]:
    return _begun_elsewhere(case, "checkpoint", after="prepared", until=checkpoint_of(1))


@kind("prediction resumed on another kind of machine")
def _prediction_elsewhere(case: Case) -> dict[str, Any]:
    def is_part(event: Event) -> bool:
        return bool(event["point"] == "written" and "/predictions/" in event["at"])

    return _begun_elsewhere(case, "predictions", after="checkpoint", until=is_part)


def _begun_elsewhere(case: Case, stage: str, *, after: str, until: Callable[[Event], bool]) -> dict[str, Any]:
    case.begin(after=after)
    case.env = _ELSEWHERE
    run = case.start()
    case.reaches(run, until, "there was half-done work")
    kill_flow(case, run)
    case.env = {}
    result = case.finish()
    made = manifest.load(URI(result["uris"][stage])).statistics
    if len(made["numerics"]) == 1 and "numerics_set_aside" not in made:
        raise Failed("the manifest does not say that half-done work was not used")
    return result
