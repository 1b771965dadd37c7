"""The commands `mistakes` and `diff`: what models get wrong, and what is different in two results or runs, and why."""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from flows.cli import predictions_csv
from flows.cli.commands import DiffOptions, MistakesOptions
from flows.cli.storage_commands import existing_root
from storage import exits, kinds, terminal
from storage.decision import metric_title
from storage.kinds import DatasetURI
from storage.manifest import JSON
from tasks.comparing import data, results
from tasks.comparing.diff import diff as compare
from tasks.comparing.rows import mistakes as find_mistakes
from tasks.comparing.rows import write_copies

_SHOWN = 20
"""Most rows of each list of `diff`; `--json` has all."""


def mistakes(options: MistakesOptions) -> int:
    with exits.refused_if_invalid():
        root = existing_root(options.storage)
        run = results.find(root, options.run, option="RUN") if options.run else results.latest(root)
        uri, predicted = run.require(kinds.PREDICTIONS)
        wrong = find_mistakes(uri, predicted, label=options.label, prediction=options.prediction)
    place = ["id"] if "file" not in wrong else ["file", "row"] if wrong["row"].notna().any() else ["file"]
    columns = [*place, "label", "prediction", "probability"]
    rows = [{name: None if row[name] is pd.NA else row[name] for name in columns} for row in wrong.to_dict("records")]
    if options.csv:
        predictions_csv.write_rows(options.csv, columns, rows, has_mark=options.excel)
    if options.copy_to:
        titles = [f"{row['label']} as {row['prediction']}" for row in rows]
        copied = [
            {"split": "test", "id": id_, "title": title, **row}
            for id_, title, row in zip(wrong["id"].tolist(), titles, rows, strict=True)
        ]
        write_copies(options.copy_to, DatasetURI(predicted.parent("dataset", of=uri)), copied)
    num_rows = sum(part.rows or 0 for part in predicted.split("test"))
    if not options.as_json:
        exits.note(f"{terminal.count(len(rows), 'mistake')} in {terminal.count(num_rows, 'test row')} of {uri}")
    order = ["probability", "label", "prediction", *place]
    lines = terminal.table([order, *([_cell(row[name]) for name in order] for row in rows)])
    document = {"predictions": uri, "test_rows": num_rows, "mistakes": rows}
    return terminal.answer(document, lines, as_json=options.as_json)


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def diff(options: DiffOptions) -> int:
    with exits.refused_if_invalid():
        root = existing_root(options.storage)
        a, b = (results.find(root, word, option=option) for option, word in (("A", options.a), ("B", options.b)))
    document = compare(a, b)
    return terminal.answer(document, _lines(document), as_json=options.as_json)


def _lines(document: JSON) -> Iterator[str]:
    yield from terminal.table([(name.upper(), document[name]["created"], document[name]["uri"]) for name in "ab"])
    yield "what changed"
    yield from (f"  {line}" for line in document["changes"] or ["nothing that is recorded"])
    yield from (f"  {name} cannot be compared: {why}" for name, why in document["notes"].items())
    if tests := document["test_rows"]:
        yield f"metrics on the {terminal.count(tests['rows'], 'test row')} that both predicted"
        yield from (f"  {line}" for line in terminal.table(_metrics(tests["metrics"]), right=(1, 2, 3)))
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


def _before(row: Mapping[str, str]) -> tuple[str, str]:
    before = [f"{name} was {row[f'{name}_before']}" for name in ("file", "class", "split") if f"{name}_before" in row]
    return row["class"], ", ".join(before)


def _list(title: str, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield f"{title} ({len(rows):,})"
        yield from (f"  {line}" for line in terminal.table(rows[:_SHOWN]))
        yield from [f"  ... and {len(rows) - _SHOWN:,} more: --json"] if len(rows) > _SHOWN else []


def _metrics(metrics: Mapping[str, JSON]) -> Iterator[tuple[str, ...]]:
    yield "", "A", "B", "difference", ""
    for name, values in metrics.items():
        chance = "" if values["lower"] is None else f"95% interval {values['lower']:+.4f} to {values['upper']:+.4f}, "
        chance += f"p = {values['p_value']:.2g}"
        yield metric_title(name), f"{values['a']:.4f}", f"{values['b']:.4f}", f"{values['difference']:+.4f}", chance
