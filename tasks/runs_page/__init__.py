"""The page of all runs: champions over time, and every run with its metrics and report, as storage is now."""

import base64
import datetime
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from storage import champions, registry
from storage.admin import runs
from storage.decision import Decision
from storage.kinds import REPORT
from storage.manifest import Damaged
from storage.uri import Root
from tasks import report_page

_FOLDER = Path(__file__).parent
_WIDTH, _HEIGHT, _MARGIN = 400.0, 100.0, 4.0
"""Size of a chart and the margin inside it, in its own units."""

Point = tuple[float, float]
"""A time in seconds since 1970, and an accuracy."""


def render(root: Root, *, links_to: str) -> bytes:
    """Render the page as self-contained HTML; the same storage gives the same bytes.

    All stored text is escaped, and the page's policy allows only its own script, by its digest.

    Args:
        root: Storage root.
        links_to: Address of the root for the links to reports, with a slash at the end; not quoted.
    """
    rows, damaged = runs.of(root)
    script = (_FOLDER / "page.js").read_text()
    rows = [row | {"link": _link(row, links_to), "changed": runs.changes_as_text(row["changes"])} for row in rows]
    models, also_damaged = _models(root, rows)
    template = report_page.environment(_FOLDER).get_template("page.html.j2")
    return template.render(
        root_name=root.name,
        rows=rows,
        mark=runs.mark,
        models=models,
        damaged=sorted({*damaged, *also_damaged}),
        saved=_duration(sum(row["seconds_saved"] or 0 for row in rows)),
        script=Markup(script),
        policy=policy(script),
        longest_word=0,
    ).encode()


def policy(script: str | None = None) -> str:
    """Return the Content-Security-Policy of the page: no requests, and no script but its own."""
    digest = hashlib.sha256((script or (_FOLDER / "page.js").read_text()).encode()).digest()
    source = f"'sha256-{base64.b64encode(digest).decode()}'"
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {source}"


def _link(row: Mapping[str, Any], links_to: str) -> str:
    return quote(f"{links_to}{REPORT.folder}/{row['uri'].name}/{row['page'].name}", safe="/:")


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"


def _models(root: Root, rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return for each registered model its champions, oldest first, and its chart; a line for each damaged one."""
    models: list[dict[str, Any]] = []
    damaged: list[str] = []
    for name in champions.registered_models(root):
        try:
            decisions = registry.history(root, name)
        except Damaged as error:
            damaged.append(str(error))
            continue
        pairs = itertools.pairwise([None, *decisions])
        changes = [now for before, now in pairs if now and now.champion != (before and before.champion)]
        own = [row for row in rows if row["registered_model"] == name]
        of_checkpoint = {row["checkpoint"].name: row for row in own if row["checkpoint"]}
        promotions = [_promotion(decision, of_checkpoint) for decision in changes]
        models.append({"name": name, "promotions": promotions, "chart": _chart(own, promotions)})
    return models, damaged


def _promotion(decision: Decision, of_checkpoint: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Describe how a champion came to be; without its run, by what the decision recorded."""
    assert decision.champion  # a registered model never loses its champion
    row = of_checkpoint.get(decision.champion.name)
    recorded = decision.metrics.get("challenger", {}).get("test_accuracy")
    return {
        "decision": decision,
        "title": f"{row['recipe']} {runs.changes_as_text(row['changes'])}" if row else decision.champion.name,
        "link": row["link"] if row else None,
        "accuracy": row["test_accuracy"] if row else recorded,
    }


def _chart(rows: Iterable[Mapping[str, Any]], promotions: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the paths of a chart: a dot for each run, and a line of steps for the champions; None below two."""
    dots = [
        (datetime.datetime.fromisoformat(row["created"]).timestamp(), row["test_accuracy"])
        for row in rows
        if row["test_accuracy"] is not None
    ]
    steps = [
        (entry["decision"].decided.timestamp(), entry["accuracy"])
        for entry in promotions
        if entry["decision"].decided and entry["accuracy"] is not None
    ]
    if len(dots) < 2:
        return None
    start, end = min(dots + steps)[0], max(dots + steps)[0]
    accuracies = sorted(accuracy for _, accuracy in dots)
    # A failed training far below all others would press them together at the top: it is drawn at the lower edge.
    low = min([accuracies[len(accuracies) // 10], *(accuracy for _, accuracy in steps)])
    high = max(accuracy for _, accuracy in dots + steps)

    def place(point: Point) -> str:
        across = (point[0] - start) / (end - start) if end > start else 0.5
        up = (max(low, point[1]) - low) / (high - low) if high > low else 0.5
        x, y = _MARGIN + across * (_WIDTH - 2 * _MARGIN), _MARGIN + (1 - up) * (_HEIGHT - 2 * _MARGIN)
        return f"{x:.1f} {y:.1f}"

    line = [place(point) for point in steps]
    stairs = "".join(f"L{after.split()[0]} {before.split()[1]}L{after}" for before, after in itertools.pairwise(line))
    last = f"L{_WIDTH - _MARGIN:.1f} {line[-1].split()[1]}" if line else ""
    return {
        "size": f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        "dots": "".join(f"M{place(point)}h.01" for point in dots),
        "line": f"M{line[0]}{stairs}{last}" if line else "",
        "low": low,
        "high": high,
        "start": datetime.datetime.fromtimestamp(start, datetime.UTC),
        "end": datetime.datetime.fromtimestamp(end, datetime.UTC),
        "is_cut": accuracies[0] < low,
    }
