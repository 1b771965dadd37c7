"""Choice of the checkpoint from which a training resumes: the newest one with the numerics of this process."""

import dataclasses
from collections.abc import Sequence

from storage.uri import URI
from tasks.learning import checkpoint
from tasks.learning.checkpoint import Meta
from tasks.learning.numerics import UNKNOWN, Numerics, differences, together


class NumericsChanged(RuntimeError):
    """Workers were restarted with other numerics: the training needs a new attempt."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """Starting point of a training."""

    uri: URI | None
    """Checkpoint to resume from; none: start at the first epoch."""
    numerics: tuple[Numerics, ...]
    """Numerics of all epochs of the resulting model, past and future."""
    set_aside: tuple[Numerics, ...]
    """Numerics of finished epochs that are not used."""
    passed_over: tuple[URI, ...] = ()
    """Checkpoints of these epochs."""
    warning: str | None = None
    """Warning for the log, if any."""


def choose(scratch: URI, *, now: Sequence[Numerics], epochs: int, accept_mixed: bool) -> Start:
    """Choose the newest complete checkpoint below `scratch` from which this training may resume.

    Args:
        scratch: Folder of all attempts.
        now: Numerics of every rank.
        epochs: Number of epochs of the training. If all are done, nothing more is computed, so nothing is mixed.
        accept_mixed: Resume even from epochs that were computed with other numerics.
    """
    passed_over: dict[URI, Meta] = {}
    for uri, meta in checkpoint.whole(scratch):
        before = meta.numerics or (UNKNOWN,)
        is_same = set(now) <= set(before)
        is_done = meta.epoch == epochs and UNKNOWN not in before
        if is_same or is_done or accept_mixed:
            mixed = "" if is_same or is_done else _mixed(meta, now)
            return Start(
                uri=uri,
                numerics=before if is_done else together(before, now),
                set_aside=together(meta.set_aside or (), _of(passed_over)),
                passed_over=tuple(passed_over),
                warning=mixed or (_passed_over(passed_over, now, then=meta.epoch) if passed_over else None),
            )
        passed_over[uri] = meta
    return Start(
        uri=None,
        numerics=together(now),
        set_aside=_of(passed_over),
        passed_over=tuple(passed_over),
        warning=_passed_over(passed_over, now, then=0) if passed_over else None,
    )


def _of(passed_over: dict[URI, Meta]) -> tuple[Numerics, ...]:
    return together(*(meta.numerics or (UNKNOWN,) for meta in passed_over.values()))


def _mixed(meta: Meta, now: Sequence[Numerics]) -> str:
    return (
        f"epochs 1 to {meta.epoch} were computed with other numerics "
        f"({differences(meta.numerics or (UNKNOWN,), now)}); resuming from them as allowed by "
        "--accept-mixed-numerics; the result may differ from that of an uninterrupted run"
    )


def _passed_over(passed_over: dict[URI, Meta], now: Sequence[Numerics], *, then: int) -> str:
    newest = next(iter(passed_over.values()))
    goes_on = f"training resumes from epoch {then}" if then else "training restarts from the beginning"
    return (
        f"epochs up to {newest.epoch} were computed with other numerics "
        f"({differences(newest.numerics or (UNKNOWN,), now)}); {goes_on} so that the result is not mixed; "
        "--accept-mixed-numerics resumes from them"
    )
