"""The command `export`: no flow, since it needs neither Ray nor Prefect's server."""

import json

from flows.cli.options import ExportOptions
from storage import exits, manifest, terminal
from tasks.orchestration.stage import using
from tasks.planning import export_request


def export(options: ExportOptions) -> int:
    """Export a model, or find the export of an earlier call; print its URI, its files, and what was proven."""
    with exits.refused_if_invalid():
        request = export_request.resolve(storage=options.storage, model=options.model)
    from rich.console import Console

    from flows.cli import console
    from tasks.export import export as export_task

    console.attach(console.Narrator(Console(stderr=True)))
    with using(request.root, [request.checkpoint, request.prepared]) as stages:
        export_task.fn(request.checkpoint, request.prepared, request.export)
    recorded = manifest.load(request.export)
    uris = {"checkpoint": request.checkpoint, "prepared": request.prepared, "export": request.export}
    paths = [request.export.child(file.path) for file in recorded.files]
    if options.as_json:
        summary = {"uris": uris, "files": paths, "reused": stages[-1].reused, "statistics": recorded.statistics}
        print(json.dumps(summary, indent=1), flush=True)
    else:
        proof = recorded.statistics["proof"]
        difference = f"largest difference of a probability {proof['largest_difference']:.1e}"
        for line in (*paths, f"proven on {terminal.count(proof['rows'], 'test row')}: every class equal, {difference}"):
            terminal.show(line)
    return 0
