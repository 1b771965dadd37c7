"""Start of a flow from the command line: all checks that are possible in advance, then the flow and its outcome."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import PROJECT
from flows.cli import preflight
from flows.cli.options import PredictOptions, RunOptions, StorageOptions, parameter_names
from storage.exits import note, refused_if_invalid
from storage.process import gc_paused
from storage.uri import PredictionsURI
from tasks.learning import recipes

if TYPE_CHECKING:
    from prefect import Flow

FlowOf = Callable[[dict[str, Any], Any], "Flow[..., Any]"]
"""Returns the flow for its parameters and its plan, None: it plans; importing it takes seconds, so after the checks."""


def run(options: RunOptions, flow_of: FlowOf) -> int:
    """Run the pipeline, or with `--check` only its checks."""
    if options.check:
        with checking(options, is_run=False):
            return preflight.report(options, more=[preflight.Check("Prefect", "", _check_api)])
    with checking(options):
        request = preflight.check_and_plan(options)
    start_ray = options.workers != 0 and request.plan.needs_ray
    return start(
        flow_of,
        parameters_of(request),
        request.plan,
        as_json=options.as_json,
        start_ray=start_ray,
    )


def parameters_of(request: preflight.Preflight) -> dict[str, Any]:
    """Return the parameters of the flow for a checked request: its options, with what the checks have resolved."""
    plan, options = request.plan, request.options
    return {name: getattr(options, name) for name in parameter_names(options)} | {
        "recipe": plan.recipe.origin or plan.recipe.name,
        "settings": recipes.changes(plan.recipe),
        "storage": str(plan.root),
        "data": plan.data and str(plan.data),
        "mirror": request.mirrors,
        "register_as": plan.register_as,
    }


def _check_api(_: preflight.Preflight) -> str:
    from flows.server.temporary_server import check_api

    return check_api()


def predict(options: PredictOptions, flow_of: FlowOf) -> int:
    """Run batch prediction."""
    with checking(options):
        request = preflight.check_prediction(options)
    return start(
        flow_of,
        {name: getattr(options, name) for name in parameter_names(options)},
        request,
        as_json=options.as_json,
        csv=options.csv,
        start_ray=options.workers != 0 and request.needs_ray,
    )


@contextlib.contextmanager
def checking(options: StorageOptions, *, is_run: bool = True) -> Iterator[None]:
    """Check a request in the block: a `ValueError` is refused; a new folder for results stays only for a run."""
    is_new, goes_on = not os.path.exists(options.storage), False
    try:
        with refused_if_invalid():
            yield
        goes_on = is_run
    finally:
        if is_new and not goes_on:
            with contextlib.suppress(OSError):
                os.rmdir(options.storage)


def start(
    flow_of: FlowOf,
    request: dict[str, Any],
    plan: Any,
    *,
    as_json: bool,
    csv: Path | None = None,
    start_ray: bool = False,
) -> int:
    """Run a flow from the command line and show its progress and outcome; write its predictions to `csv`, if named.

    The flow, whose parameters are `request`, carries out `plan`. Slow starts run in parallel: Ray (if `start_ray`),
    which takes longest, Prefect's server, and the imports of the flow.
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

        # Without workers, breakpoints work: a progress bar would overwrite the debugger's prompt.
        narrator = console.Narrator(Console(stderr=True), has_bar=request["workers"] != 0)

        def meanwhile() -> None:
            with gc_paused():
                flow_of(request, plan)

        # Tags make every task request concurrency slots, which Prefect's busy SQLite postpones by two seconds.
        # Only a server that outlives this run needs the tag.
        with own_server(meanwhile) as is_own, contextlib.nullcontext() if is_own else tags(PROJECT):
            flow = flow_of(request, plan)
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
