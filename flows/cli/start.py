"""Start of a flow from the command line: all checks that are possible in advance, then the flow and its outcome."""

import contextlib
import importlib
import inspect
import os
from functools import partial
from typing import Any

from flows import PROJECT
from flows.cli import preflight
from flows.cli.commands import AuditOptions, BackfillOptions, ExportOptions, PredictOptions, RunOptions
from flows.cli.options import FlowOptions
from storage import exits, manifest, terminal
from storage.admin import catalog
from storage.exits import note, refused_if_invalid
from storage.kinds import EXPORT, PredictionsURI
from storage.process import gc_paused
from storage.uri import parse_root
from tasks.images.option import default_recipe
from tasks.learning import recipes, sources
from tasks.planning.plan import Plan

_FLOWS = {"cifar10": "cifar10", sources.USER_IMAGES: "images"}
"""Name of the flow of `flows.pipeline` by the recipe's source; `mnist` for all others."""


def run(options: RunOptions) -> int:
    """Run the pipeline, or with `--check` only its checks, and print what each found."""
    with refused_if_invalid():
        plan = preflight.checked(options, _tell if options.check and not options.as_json else preflight.ignore)
        if options.check:
            from flows.server.temporary_server import check_api

            found = check_api()
            if options.as_json:
                print(plan.model_dump_json(indent=1), flush=True)
            else:
                _tell("Prefect", found)
            return 0
    return carry_out(plan, options)


def carry_out(plan: Plan, options: RunOptions) -> int:
    name = _FLOWS.get(plan.recipe.data.source, "mnist")
    return start(plan, options, flow=f"flows.pipeline:{name}", **_naming(plan.recipe))


def _naming(recipe: recipes.Recipe) -> dict[str, Any]:
    return {"recipe": recipe.origin or recipe.name, "settings": recipes.changes(recipe)}


def _tell(name: str, found: str) -> None:
    terminal.show_lines(f"ok       {name:<8} {' '.join(fact.split())}" for fact in found.splitlines())


def predict(options: PredictOptions) -> int:
    with refused_if_invalid():
        request = preflight.checked_prediction(options)
    return start(request, options, flow="flows.predict:predict")


def backfill(options: BackfillOptions) -> int:
    """Train on each raw dataset and record what the gate says; the champion stays; return 1 if one failed."""
    shared = {name: value for name, value in vars(options).items() if name != "version"}
    shared["recipe"] = options.recipe or default_recipe(next(iter(options.version), None))
    with refused_if_invalid():
        datasets = _datasets(options, preflight.check_request(RunOptions(**shared)).data.source)
    failed = []
    for number, uri in enumerate(datasets, start=1):
        note(f"\nversion {number} of {len(datasets)}: {uri}")
        code = exits.guarded(partial(run, RunOptions(**shared, data=uri, judge_only=True)))
        if code in (exits.INTERRUPTED, exits.TERMINATED):
            return code
        failed += [uri] if code else []
    if failed:
        note(f"{len(failed)} of {len(datasets)} versions failed: {', '.join(failed)}")
    return exits.FAILED if failed else 0


def _datasets(options: BackfillOptions, source: str) -> list[str]:
    """Return the raw datasets that the user names, else all that are named after `source`, oldest first."""
    root, names = parse_root(options.storage), {name.rstrip("/").rpartition("/")[2] for name in options.version}
    folders = sorted(catalog.read_folders(catalog.list_folders(root, ["raw"])), key=lambda folder: folder.created)
    committed = {folder.uri.name: str(folder.uri) for folder in folders if folder.manifest}
    if missing := names - committed.keys():
        raise ValueError(f"version must be one of {', '.join(committed) or 'none'}, got {min(missing)!r}")
    chosen = names or {name for name in committed if name.rpartition("-")[0] == source}
    if not chosen:
        raise ValueError(f"--storage: {root} has no raw dataset of {source!r}; name some (`data-to-model ls raw`)")
    return [uri for name, uri in committed.items() if name in chosen]


def audit(options: AuditOptions) -> int:
    """Find the suspects, or those of an earlier call; print them, and write table and copies."""
    with refused_if_invalid():
        request = preflight.checked_audit(options)
    plan = request.plan
    code = start(request, options, flow="flows.audit:audit", storage=str(plan.root), **_naming(plan.recipe))
    from flows.cli import predictions_csv
    from tasks.auditing import rows

    table = rows.read(request.audit.target)
    if options.csv:
        predictions_csv.write_rows(options.csv, rows.SCHEMA.names, table, has_mark=options.excel)
    if options.copy_to:
        from tasks.comparing.rows import write_copies

        copied = [row | {"title": f"{row['given']} likely {row['likely']}"} for row in table]
        write_copies(options.copy_to, plan.preprocess.raw, copied)
    return code


def export(options: ExportOptions) -> int:
    """Export a model, without a flow, or find the export of an earlier call; print files and check."""
    from tasks.planning import model_requests

    with refused_if_invalid():
        request = model_requests.resolve_export(storage=options.storage, model=options.model)
    from rich.console import Console

    from flows.cli import console
    from tasks.export import export as export_task
    from tasks.orchestration.stage import using

    console.attach(console.Narrator(Console(stderr=True)))
    with using(request.storage, [request.checkpoint, request.prepared]) as steps:
        exported = export_task.fn(request)
    recorded = manifest.load(exported)
    uris = {"checkpoint": request.checkpoint, "prepared": request.prepared, "export": exported}
    paths = [exported.child(file.path) for file in recorded.files]
    statistics, proof = recorded.statistics.model_dump(mode="json"), recorded.statistics_of(EXPORT).proof
    summary = {"uris": uris, "files": paths, "reused": steps[-1].reused, "statistics": statistics}
    rows, difference = terminal.count(proof.rows, "test row"), f"{proof.largest_difference:.1e}"
    lines = [*paths, f"checked on {rows}: largest difference of a probability {difference}"]
    return terminal.answer(summary, lines, as_json=options.as_json)


def start(request: Any, options: FlowOptions, *, flow: str, **others: Any) -> int:
    """Run a flow from the command line and show its progress and outcome; write predictions to CSV, if asked.

    `flow` is `module:name`; it carries out `request`, which is checked already. Prefect shows its parameters: `others`,
    else the `options` of their names. Slow starts run in parallel: Ray, if it is needed, which takes longest, Prefect's
    server, and the imports of the flow.
    """
    from tasks.runners.session import starting

    module, _, name = flow.partition(":")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # Heartbeats let a shared server mark a killed run as Crashed, as it does for runs of deployments.
    os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "30")
    start_ray = options.workers != 0 and request.needs_ray
    note(f"starting {'Ray and ' if start_ray else ''}Prefect ...")
    with starting(wanted=start_ray):
        with gc_paused():
            from flows.server.temporary_server import check_api, own_server

            with refused_if_invalid():
                check_api()
            from prefect import tags
            from rich.console import Console

            from flows.cli import console, predictions_csv

        # Without workers, breakpoints work: a progress bar would overwrite the debugger's prompt.
        narrator = console.Narrator(Console(stderr=True), has_bar=options.workers != 0)

        def meanwhile() -> None:
            with gc_paused():
                importlib.import_module(module)

        # Tags make every task request concurrency slots, which Prefect's busy SQLite postpones by two seconds.
        # Only a server that outlives this run needs the tag.
        with own_server(meanwhile) as is_own, contextlib.nullcontext() if is_own else tags(PROJECT):
            run_flow = getattr(importlib.import_module(module), name)
            values = vars(options) | others
            parameters = {name: values[name] for name in inspect.signature(run_flow.fn).parameters}
            console.attach(narrator)
            try:
                with preflight.passing(request):
                    summary = run_flow(**parameters)
            finally:
                narrator.stop()
    if isinstance(options, PredictOptions) and options.csv:
        table = PredictionsURI(summary["uris"]["predictions"])
        limits = {"min_confidence": options.min_confidence, "max_distance": options.max_distance}
        predictions_csv.write_csv(table, options.csv, **limits, has_mark=options.excel)
        summary["csv"] = str(options.csv)
    return terminal.answer(summary, console.lines(summary), as_json=options.as_json)
