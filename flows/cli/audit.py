"""The command `audit`: request, flow, and what is written for people: a table, and copies of the suspects."""

from pathlib import Path, PurePosixPath

from flows.cli import predictions_csv, preflight, start
from flows.cli.options import AuditOptions
from storage import exits
from tasks.auditing import rows
from tasks.comparing.rows import write_copies
from tasks.planning.audit_request import AuditRequest


def audit(options: AuditOptions) -> int:
    """Find the suspects, or those of an earlier call; print them, and write table and copies."""
    with exits.refused_if_invalid():
        request = preflight.checked(options)
    plan = request.plan
    parameters = {"data": options.data, "storage": str(plan.root), "workers": options.workers}
    code = start.start(request, options, parameters | start.parameters_of_recipe(plan.recipe), flow="flows.audit:audit")
    if options.csv:
        table = rows.read(request.audit.target)
        predictions_csv.write_rows(options.csv, rows.SCHEMA.names, table, has_mark=options.excel)
    if options.copy_to:
        _copy(request, options.copy_to)
    return code


def _copy(request: AuditRequest, folder: Path) -> None:
    names: dict[str, dict[int, str]] = {"train": {}, "test": {}}
    for rank, row in enumerate(rows.read(request.audit.target), start=1):
        words = (f"{rank:05d} {row['given']} likely {row['likely']},", PurePosixPath(row["file"]).stem, row["row"])
        names[row["split"]][row["id"]] = " ".join(str(word) for word in words if word is not None)
    for split, of_split in names.items():
        write_copies(folder, request.plan.preprocess.raw, of_split, split=split)
