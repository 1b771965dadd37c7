"""The command `diff`: what is different in two results or runs, and why, as text or JSON."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from flows.cli.result_options import DiffOptions
from storage import exits, terminal
from storage.admin import format
from storage.admin.commands import existing_root
from storage.decision import metric_title
from tasks.comparing import data, results
from tasks.comparing.diff import diff as compare

_SHOWN = 20
"""Most rows of each list; `--json` has all."""


def diff(options: DiffOptions) -> int:
    """Print what is different in B from A."""
    with exits.refused_if_invalid():
        root = existing_root(options.storage)
        a, b = (results.find(root, word, option=option) for option, word in (("A", options.a), ("B", options.b)))
    document = compare(a, b)
    if options.as_json:
        print(json.dumps(document, indent=1), flush=True)
        return 0
    for line in _lines(document):
        terminal.show(line)
    return 0


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    yield from format.table([(name.upper(), document[name]["created"], document[name]["uri"]) for name in "ab"])
    yield "what changed"
    yield from (f"  {line}" for line in document["changes"] or ["nothing that is recorded"])
    yield from (f"  {name} cannot be compared: {why}" for name, why in document["notes"].items())
    if tests := document["test_rows"]:
        yield f"metrics on the {terminal.count(tests['rows'], 'test row')} that both predicted"
        yield from (f"  {line}" for line in format.table(_metrics(tests["metrics"]), right=(1, 2, 3)))
        yield from [f"  {tests['note']}"] if tests["note"] else []
    for sort in data.SORTS:
        rows = [(row["file"], *_before(row)) for row in (document["data"] or data.NONE)[sort]]
        yield from _list(f"{sort} in the data", rows)
    for sort in ("better", "worse") if tests else ():
        rows = [
            (
                row["file"],
                row["label"],
                *(f"{row[f'prediction_{name}']} {row[f'probability_{name}']:.4f}" for name in "ab"),
            )
            for row in tests[sort]
        ]
        yield from _list(f"{sort}: file, label, prediction of A and of B", rows)


def _before(row: Mapping[str, Any]) -> tuple[str, str]:
    before = [f"{name} was {row[f'{name}_before']}" for name in ("file", "class", "split") if f"{name}_before" in row]
    return row["class"], ", ".join(before)


def _list(title: str, rows: list[Any]) -> Iterator[str]:
    if rows:
        yield f"{title} ({len(rows):,})"
        yield from (f"  {line}" for line in format.table(rows[:_SHOWN]))
        yield from [f"  ... and {len(rows) - _SHOWN:,} more: --json"] if len(rows) > _SHOWN else []


def _metrics(metrics: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, ...]]:
    yield "", "A", "B", "difference", ""
    for name, values in metrics.items():
        interval = (
            f"95 % interval {values['lower']:+.4f} to {values['upper']:+.4f}, p = {values['p_value']:.2g}"
            if "lower" in values
            else ""
        )
        yield metric_title(name), f"{values['a']:.4f}", f"{values['b']:.4f}", f"{values['difference']:+.4f}", interval
