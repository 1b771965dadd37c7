"""Entry points of the command lines: run all checks that are possible in advance, then run the flow."""

import argparse
import contextlib
import getpass
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import PROJECT
from flows.cli.arguments import parsed, parser, predict_parser
from flows.cli.preflight import CheckReport, check_and_plan
from storage.exits import guarded, note, refused_if_invalid
from storage.process import gc_paused
from storage.uri import PredictionsURI, parse_root
from tasks.resources import capacity
from tasks.runners import node_checks

if TYPE_CHECKING:
    from prefect import Flow

FlowOf = Callable[[dict[str, Any]], "Flow[..., Any]"]
"""Returns the flow for its parameters; importing it takes seconds, so it is called after the request is checked.

The flow's file may be the script that runs. It is still imported by name, because Prefect records the name.
"""


def note_checking() -> None:
    """Say at once on a terminal that the request is checked; elsewhere an invalid one is one line and no more."""
    if sys.stderr.isatty():
        note("checking the request ...")


def training_flow(request: dict[str, Any]) -> "Flow[..., Any]":
    """Return the pipeline's flow for the data set of `request`."""
    from flows import pipeline

    return pipeline.flow_of(request)


def _prediction_flow(_: dict[str, Any]) -> "Flow[..., Any]":
    from flows.predict import predict

    return predict


def main(flow_of: FlowOf = training_flow, argv: Sequence[str] | None = None) -> int:
    """Run the pipeline, or with `--check` only its checks.

    Returns:
        The exit code: 0, 1 (failed), 2 (invalid request), 129 (its terminal was closed) or 130 (interrupted).
    """
    arguments = parsed(parser(), argv)
    if arguments.check:
        return guarded(lambda: _run_checks(arguments))

    def work() -> int:
        note_checking()
        with no_folder_stays(arguments.storage, if_refused=True), refused_if_invalid():
            planned = check_and_plan(arguments)
        needs: dict[str, Any] = {"start_ray": planned.needs_ray, "uses_network": planned.uses_network}
        return run(flow_of, planned.request, as_json=arguments.json, **needs)

    return guarded(work)


def _run_checks(arguments: argparse.Namespace) -> int:
    report = CheckReport(as_json=arguments.json)
    with no_folder_stays(arguments.storage):
        check_and_plan(arguments, report)
        from flows.server.temporary_server import check_api

        report("Prefect", check_api)
    return report.end()


@contextlib.contextmanager
def no_folder_stays(storage: str, *, if_refused: bool = False) -> Iterator[None]:
    """Remove empty folders that the block created: storage, Prefect's, torch's; with `if_refused` only if it raises.

    A run that goes on needs them, as may another one that starts at the same time.
    """
    places = [Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()]  # importing Prefect creates it
    with contextlib.suppress(KeyError, OSError):  # importing torchvision creates it
        places.append(Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}"))
    with contextlib.suppress(ValueError):  # the storage check reports it
        root = parse_root(storage)
        places += [] if root.is_s3 else [Path(root)]
    missing = [[one for one in (place, *place.parents) if not one.exists()] for place in places]
    is_refused = True
    try:
        yield
        is_refused = False
    finally:
        for folders in missing if is_refused or not if_refused else []:
            with contextlib.suppress(OSError):
                for folder in folders:
                    folder.rmdir()


def main_predict(flow_of: FlowOf = _prediction_flow, argv: Sequence[str] | None = None) -> int:
    """Run batch prediction; return an exit code as `main` does."""
    arguments = parsed(predict_parser(), argv)
    from tasks.planning import predict_request
    from tasks.planning.durations import parse_duration

    request = {
        "data": arguments.dataset,
        "model": arguments.model,
        "storage": arguments.storage,
        "split": arguments.split,
        "workers": arguments.workers,
        "stage_timeout": f"{arguments.deadline}m",
    }

    def work() -> int:
        note_checking()
        with no_folder_stays(arguments.storage, if_refused=True), refused_if_invalid():
            capacity.check_workers(arguments.workers)
            limit_s = parse_duration(request["stage_timeout"], option="--stage-timeout")
            named = {name: value for name, value in request.items() if name != "stage_timeout"}
            resolved = predict_request.resolve(**named, stage_timeout_s=limit_s)
            needs_ray = arguments.workers != 0 and not resolved.is_done()
            if needs_ray:
                node_checks.check_nodes(resolved.root, arguments.workers)
        return run(flow_of, request, as_json=arguments.json, csv=arguments.csv, start_ray=needs_ray)

    return guarded(work)


def run(
    flow_of: FlowOf,
    request: dict[str, Any],
    *,
    as_json: bool,
    csv: Path | None = None,
    start_ray: bool = False,
    uses_network: bool = False,
) -> int:
    """Run a flow from the command line and show its progress and outcome; write its predictions to `csv`, if named.

    Slow starts run in parallel: Ray (if `start_ray`), which takes longest, Prefect's server, and the imports for
    downloads (if `uses_network`).
    """
    from tasks.runners.session import starting

    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # Heartbeats let a shared server mark a killed run as Crashed, as it does for runs of deployments.
    os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "30")
    note(f"starting {'Ray and ' if start_ray else ''}Prefect ...")
    with starting(wanted=start_ray):
        with gc_paused():
            from flows.server.temporary_server import check_api, own_server

            with refused_if_invalid():
                check_api()
            from prefect import tags
            from rich.console import Console

            from flows.cli import console, predictions_csv
            from tasks.learning import downloading

        # Without workers, breakpoints work: a progress bar would overwrite the debugger's prompt.
        narrator = console.Narrator(Console(stderr=True), has_bar=request["workers"] != 0)

        def meanwhile() -> None:
            with gc_paused():
                flow_of(request)
                if uses_network:
                    downloading.import_what_downloading_needs()

        # Tags make every task request concurrency slots, which Prefect's busy SQLite postpones by two seconds.
        # Only a server that outlives this run needs the tag.
        with own_server(meanwhile) as is_own, contextlib.nullcontext() if is_own else tags(PROJECT):
            flow = flow_of(request)
            console.attach(narrator)
            try:
                summary = flow(**request)
            finally:
                narrator.stop()
    if csv:
        predictions_csv.write_csv(PredictionsURI(summary["uris"]["predictions"]), csv)
        summary["csv"] = str(csv)
    if as_json:
        print(json.dumps(summary, indent=1), flush=True)
    else:
        console.show(summary)
    return 0
