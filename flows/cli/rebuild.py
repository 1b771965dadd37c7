"""`verify --rebuild`: make a model again from its raw files in a scratch root, and compare digests result by result."""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator

from flows.cli import checks, preflight, start
from flows.cli.commands import RunOptions
from storage import exits, terminal
from storage.admin import catalog
from storage.kinds import CHECKPOINT, KINDS, CheckpointURI
from storage.manifest import Manifest
from storage.uri import Root
from tasks.comparing import results
from tasks.comparing.diff import diff
from tasks.comparing.results import Results
from tasks.planning import make_plan

_MODEL = "rebuilt"
"""Registered model of the scratch root."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """What a model made again has in common with the first one."""

    agrees: dict[str, bool]
    """Whether the files of each kind of result are the same to the byte, from the data to the evaluation."""
    causes: list[str]
    """What is different in data, recipe, code, versions and hardware."""


def rebuild(root: Root, model: str, *, data: str | None = None) -> Rebuilt:
    """Make a model again, with all that it was made of and that was made of it, in a temporary folder.

    Args:
        root: Storage root of the model.
        model: Name or URI of its checkpoint, or `champion:NAME`.
        data: Where its images are now, or a mirror of its source; None: where they were.

    Raises:
        ValueError: There is no such model, or it cannot be made again, such as one that started from a champion.
    """
    checkpoint = CheckpointURI(catalog.named(root, model, option="RESULT"))
    catalog.committed(checkpoint, option="RESULT", kinds=(CHECKPOINT.name,))
    with tempfile.TemporaryDirectory(prefix="rebuild-") as folder:
        scratch = Root(folder).child("root")
        plan = make_plan.again(checkpoint, root=Root(scratch), registered_model=_MODEL, data=data)
        checks.check_training(plan, preflight.ignore)
        checks.check_work(plan, preflight.ignore)
        workers, cores = plan.train.workers, plan.train.cores
        options = RunOptions(data=plan.data, register_as=_MODEL, storage=scratch, workers=workers, cores=cores)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            start.carry_out(plan, options)
        return _compared(
            results.find(root, checkpoint, option="RESULT"),
            results.find(Root(scratch), plan.train.target, option="RESULT"),
        )


def _compared(first: Results, again: Results) -> Rebuilt:
    agrees = {
        kind.name: _bytes_of(before) == _bytes_of(now)
        for kind in KINDS.values()
        if (before := first.manifest(kind)) and (now := again.manifest(kind))
    }
    return Rebuilt(agrees=agrees, causes=[] if all(agrees.values()) else diff(first, again)["changes"])


def _bytes_of(result: Manifest) -> str:
    """Return the digest of what must be the same: of a checkpoint the weights, since its history has times."""
    weights = result.file("weights")
    return weights.sha256 if weights else result.content


def main(root: Root, model: str, *, data: str | None) -> int:
    """Print what agrees and what does not; return 1 if anything differs, else 0."""
    rebuilt = rebuild(root, model, data=data)
    terminal.show_lines(_lines(rebuilt))
    return 0 if all(rebuilt.agrees.values()) else exits.FAILED


def _lines(rebuilt: Rebuilt) -> Iterator[str]:
    yield from terminal.table((kind, "the same bytes" if same else "DIFFERS") for kind, same in rebuilt.agrees.items())
    if not all(rebuilt.agrees.values()):
        yield "why"
        unexplained = "nothing that is recorded differs: this recipe, with its seed, did not make this model"
        yield from (f"  {cause}" for cause in rebuilt.causes or [unexplained])
