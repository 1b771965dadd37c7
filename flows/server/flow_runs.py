"""Flow runs: of the command line with the plan it has made; of deployments with one line for invalid parameters."""

import functools
import logging
from collections.abc import Callable
from typing import Any

from prefect import Flow, State
from prefect.runtime import deployment
from prefect.states import Failed

from tasks.orchestration.prefect_options import flow_options


def planned(flow: Flow[..., Any], run: Callable[[], Any]) -> Flow[..., Any]:
    """Return a flow with the name and the parameters of `flow` that calls `run`, which has its plan already."""

    @functools.wraps(flow.fn)
    def carry_out(**_: Any) -> Any:
        return run()

    return Flow(carry_out, name=flow.name, **flow_options)


def refused(error: ValueError) -> State[Any]:
    """Return the state of a deployment's run with invalid parameters: one line in its log; else raise `error`."""
    if not deployment.id:
        raise error
    # The state says it all; Prefect's engine would add the traceback of its own exception.
    logging.getLogger("prefect.flow_runs").addFilter(lambda record: record.exc_info is None)
    return Failed(message=str(error))
