"""The command `audit`: request, flow, and what is written for people: a table, and copies of the suspects."""

import dataclasses
from pathlib import Path, PurePosixPath

from flows.cli import predictions_csv, preflight, start
from flows.cli.options import AuditOptions, RunOptions
from storage import exits
from tasks.auditing import rows
from tasks.comparing.rows import write_copies
from tasks.learning import recipes, sources
from tasks.planning import audit_request
from tasks.planning.audit_request import AuditRequest
from tasks.resources import scaling


def audit(options: AuditOptions) -> int:
    """Find the suspects, or those of an earlier call; print them, and write table and copies."""
    with exits.refused_if_invalid():
        run = _as_run(options)
        if preflight.check_request(run).training.start.kind == "champion":
            raise ValueError("start must not be champion in an audit: that model was trained on these images; omit it")
        plan = preflight.plan_run(run)
        request = audit_request.resolve(plan, folds=options.folds, is_fast=options.fast)
        if request.needs_ray:
            preflight.check_ray(plan.root, options.workers, scaling.needs_of(plan.recipe))
    parameters = {"data": options.data, "storage": str(plan.root), "workers": options.workers}
    code = start.start(request, options, parameters | start.parameters_of_recipe(plan.recipe), module="flows.audit")
    if options.csv:
        table = rows.read(request.audit)
        predictions_csv.write_rows(options.csv, rows.SCHEMA.names, table, has_mark=options.excel)
    if options.copy_to:
        _copy(request, options.copy_to)
    return code


def _as_run(options: AuditOptions) -> RunOptions:
    """Return the options of the run whose plan the trainings of the audit are derived from."""
    names = [field.name for field in dataclasses.fields(RunOptions) if hasattr(options, field.name)]
    values = {name: getattr(options, name) for name in names}
    if options.data in sources.known():
        values["data"] = None
        if options.recipe is None:
            values["recipe"] = f"{options.data}-resnet18"
        elif recipes.load(options.recipe).data.source != options.data:
            values["settings"] = [*options.settings, f"source={options.data}"]
    return RunOptions(**values, register_as="audit")  # it competes with no model, so no champion limits the data


def _copy(request: AuditRequest, folder: Path) -> None:
    names: dict[str, dict[int, str]] = {"train": {}, "test": {}}
    for rank, row in enumerate(rows.read(request.audit), start=1):
        words = (f"{rank:05d} {row['given']} likely {row['likely']},", PurePosixPath(row["file"]).stem, row["row"])
        names[row["split"]][row["id"]] = " ".join(str(word) for word in words if word is not None)
    for split, of_split in names.items():
        write_copies(folder, request.plan.raw, of_split, split=split)
