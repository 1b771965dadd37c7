"""Flow runs: of the command line with the plan it has made; of deployments with one line for invalid parameters."""

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from prefect import Flow
from prefect.runtime import deployment

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


class Refused(ValueError):
    """Invalid parameters of a deployment's run; the message names the parameters."""


@contextlib.contextmanager
def begun() -> Iterator[None]:
    """Raise a `ValueError` of the block as `Refused` in a deployment's run, whose log shows that in one line."""
    if not deployment.id:
        yield
        return
    error_filter = ErrorsOnce()
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        log = logging.getLogger(name)
        log.filters = [each for each in log.filters if not isinstance(each, ErrorsOnce)] + [error_filter]
    try:
        yield
    except ValueError as error:
        raise Refused(in_parameters(str(error))) from None


def in_parameters(text: str) -> str:
    """Replace the names of command-line options in `text` by those of the deployment's parameters."""
    return _OPTION.sub(lambda option: _PARAMETERS.get(option[1], option[1].replace("-", "_")), text)


class ErrorsOnce(logging.Filter):
    """Log filter: one line for invalid parameters, and each other error once."""

    def __init__(self) -> None:
        super().__init__()
        self._last_error: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.levelno >= logging.ERROR:
            if error is self._last_error:
                return False
            self._last_error = error
            if isinstance(error, Refused):
                record.msg, record.args, record.exc_info = str(error), (), None
        return True
