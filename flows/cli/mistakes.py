"""The command `mistakes`: the test rows that a model gets wrong, as a table, CSV, JSON, or copies of the images."""

import json
from pathlib import PurePosixPath
from typing import Any

import pandas as pd

from flows.cli import predictions_csv
from flows.cli.result_options import MistakesOptions
from storage import exits, kinds, terminal
from storage.admin import format
from storage.admin.commands import existing_root
from storage.uri import DatasetURI
from tasks.comparing import results
from tasks.comparing.rows import mistakes as find_mistakes
from tasks.comparing.rows import write_copies


def mistakes(options: MistakesOptions) -> int:
    """List the test rows that the model of a run gets wrong, worst first."""
    with exits.refused_if_invalid():
        root = existing_root(options.storage)
        run = results.find(root, options.run, option="RUN") if options.run else results.latest(root)
        uri, predicted = run.require(kinds.PREDICTIONS)
        wrong = find_mistakes(uri, predicted, label=options.label, prediction=options.prediction)
    place = ["id"] if "file" not in wrong else ["file", "row"] if wrong["row"].notna().any() else ["file"]
    columns = [*place, "label", "prediction", "probability"]
    rows = [{name: None if row[name] is pd.NA else row[name] for name in columns} for row in wrong.to_dict("records")]
    if options.csv:
        predictions_csv.write_rows(options.csv, columns, rows)
    if options.copy_to:
        names = [_copy_name(number, row, total=len(rows)) for number, row in enumerate(rows, start=1)]
        dataset = DatasetURI(predicted.parent("dataset", of=uri))
        write_copies(options.copy_to, dataset, dict(zip(wrong["id"].tolist(), names, strict=True)))
    num_rows = sum(part.rows or 0 for part in predicted.split("test"))
    if options.as_json:
        print(json.dumps({"predictions": uri, "test_rows": num_rows, "mistakes": rows}, indent=1), flush=True)
        return 0
    exits.note(f"{terminal.count(len(rows), 'mistake')} in {terminal.count(num_rows, 'test row')} of {uri}")
    order = ["probability", "label", "prediction", *place]
    for line in format.table([order, *([_cell(row[name]) for name in order] for row in rows)]):
        terminal.show(line)
    return 0


def _copy_name(number: int, row: dict[str, Any], *, total: int) -> str:
    """Return the name of a copy, without its suffix: `007 dog as cat, photo 3`."""
    name = PurePosixPath(row["file"]).stem if "file" in row else f"id {row['id']}"
    name += f" row {row['row']}" if row.get("row") is not None else ""
    return f"{number:0{len(str(total))}} {row['label']} as {row['prediction']}, {name}"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
