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
    threads: int = 0
    """Threads per worker of the run that wrote `uri`; 0 if they do not affect the result."""
    is_mixed: bool = False
    """True if the remaining epochs are computed with numerics that no earlier one had."""


def choose(scratch: URI, *, now: Sequence[Numerics], epochs: int, accept_mixed: bool) -> Start:
    """Choose the newest complete checkpoint in `scratch` from which a training whose ranks have numerics `now` resumes.

    If all `epochs` are done, nothing more is computed, so nothing is mixed.
    """
    passed_over: dict[URI, Meta] = {}
    for uri, meta in checkpoint.complete_checkpoints(scratch):
        before = meta.numerics or (UNKNOWN,)
        is_same = set(now) <= set(before)
        is_done = meta.epoch == epochs and UNKNOWN not in before
        if not (is_same or is_done or accept_mixed):
            passed_over[uri] = meta
            continue
        warning = _warning(passed_over, now, next_step=f"training resumes from epoch {meta.epoch}")
        if not (is_same or is_done):
            warning = (
                f"epochs 1 to {meta.epoch} were computed with other numerics ({differences(before, now)}); resuming "
                "from them as allowed by --accept-mixed-numerics; the result may differ from that of an uninterrupted "
                "run"
            )
        return Start(
            uri=uri,
            numerics=before if is_done else together(before, now),
            set_aside=together(meta.set_aside or (), _numerics(passed_over)),
            passed_over=tuple(passed_over),
            warning=warning,
            threads=int(meta.resolved["threads"]),
            is_mixed=not (is_same or is_done),
        )
    return Start(
        uri=None,
        numerics=together(now),
        set_aside=_numerics(passed_over),
        passed_over=tuple(passed_over),
        warning=_warning(passed_over, now, next_step="training restarts from the beginning"),
    )


def _numerics(passed_over: dict[URI, Meta]) -> tuple[Numerics, ...]:
    return together(*(meta.numerics or (UNKNOWN,) for meta in passed_over.values()))


def _warning(passed_over: dict[URI, Meta], now: Sequence[Numerics], *, next_step: str) -> str | None:
    if not passed_over:
        return None
    newest = next(iter(passed_over.values()))
    return (
        f"epochs up to {newest.epoch} were computed with other numerics "
        f"({differences(newest.numerics or (UNKNOWN,), now)}); {next_step} so that the result is not mixed; "
        "--accept-mixed-numerics resumes from them"
    )
