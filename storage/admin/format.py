"""Formatting for users: sizes, times, and aligned tables."""

import datetime
from collections.abc import Iterable, Iterator, Sequence

from rich.filesize import decimal as size

from storage.decision import Decision
from storage.terminal import count

__all__ = ["count", "decided", "moment", "size", "table"]


def moment(time: datetime.datetime) -> str:
    """Format a time as local time to the minute: `2026-11-23 14:05`."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M")


def decided(decision: Decision) -> str:
    """Format time, author and reason of a decision, if known: `2026-11-23 14:05 by ada: promoted by hand`."""
    known = [moment(decision.decided) if decision.decided else "", f"by {decision.author}" if decision.author else ""]
    return ": ".join(filter(None, [" ".join(filter(None, known)), decision.reason]))


def table(rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> Iterator[str]:
    """Yield a line for each row with aligned columns, those in `right` to the right; lines are never cut or wrapped."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        aligned = [f"{cell:{'>' if i in right else '<'}{widths[i]}}" for i, cell in enumerate(row)]
        yield "  ".join(aligned).rstrip()
