"""Flow runs: of the command line with the plan it has made; of deployments with one line for invalid parameters."""

import functools
import logging
import re
from collections.abc import Callable
from typing import Any

from prefect import Flow, State
from prefect.runtime import deployment
from prefect.states import Failed

from tasks.orchestration.prefect_options import flow_options

_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
_PARAMETERS = {"set": "settings"}
"""Parameters whose names differ from those of the command line's options."""


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
    return Failed(message=in_parameters(str(error)))


def in_parameters(text: str) -> str:
    """Replace the names of command-line options in `text` by those of the deployment's parameters."""
    return _OPTION.sub(lambda option: _PARAMETERS.get(option[1], option[1].replace("-", "_")), text)
