"""The command `audit`: request, flow, and what is written for people: a table, and copies of the suspects."""

import dataclasses
from pathlib import Path, PurePosixPath
from typing import Any

from flows.cli import predictions_csv, preflight, start
from flows.cli.options import RunOptions
from flows.cli.result_options import AuditOptions
from tasks.auditing import rows
from tasks.comparing import copies
from tasks.learning import recipes, sources
from tasks.planning import audit_request
from tasks.planning.audit_request import AuditRequest


def audit(options: AuditOptions) -> int:
    """Find the suspects, or those of an earlier call; print them, and write table and copies."""
    with start.checking(options):
        run = _as_run(options)
        checks = preflight.Preflight(run)
        checks.check_request()
        if checks.recipe.training.start.kind == "champion":
            raise ValueError("start must not be champion in an audit: that model was trained on these images; omit it")
        checked = preflight.check_and_plan(run)
        request = audit_request.resolve(checked.plan, folds=options.folds, is_fast=options.fast)
        start_ray = options.workers != 0 and request.needs_ray
        if start_ray:
            preflight.check_disk_and_nodes(request.plan.root, options.workers, checked.needs)
    parameters = {
        "data": options.data,
        "recipe": checked.recipe.origin or checked.recipe.name,
        "storage": str(request.plan.root),
        "settings": recipes.changes(checked.recipe),
        "workers": options.workers,
    }

    def flow_of(_: dict[str, Any], plan: Any = None) -> Any:
        from flows.audit import flow_of

        return flow_of(plan)

    code = start.start(
        flow_of,
        parameters,
        request,
        as_json=options.as_json,
        start_ray=start_ray,
    )
    if options.csv:
        predictions_csv.write_rows(options.csv, rows.SCHEMA.names, rows.read(request.audit))
    if options.copy_to:
        _copy(request, options.copy_to)
    return code


def _as_run(options: AuditOptions) -> RunOptions:
    """Return the options of the run whose plan the trainings of the audit are derived from."""
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    for own in ("folds", "fast", "csv", "copy_to"):
        del values[own]
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
        copies.write(folder, request.plan.raw, of_split, split=split)
