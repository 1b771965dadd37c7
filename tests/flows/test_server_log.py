"""`make up` shows the errors of Prefect's server, in the format in which that server writes them."""

import os
import sys

from flows.server.server_log import ErrorLines
from tasks.runners.child import Child
from tests.runs import await_that

_SERVER = """
import logging
from prefect.logging.configuration import setup_logging
setup_logging()
logger = logging.getLogger("prefect.server.services")
logger.warning("late")
for number in range(10):
    try:
        raise LookupError(f"no run for\\n  postgresql://user:s3cret@host/prefect")
    except LookupError:
        logger.exception("[%d ms] schedule_deployments", number)
logging.getLogger("prefect.server.api").critical("cannot write")
print("done", flush=True)
"""


def test_errors_of_the_server_are_shown_once_in_one_line_with_their_cause() -> None:
    child = Child([sys.executable, "-c", _SERVER], env=os.environ | {"COLUMNS": "200"})
    errors, lines = ErrorLines(), list[str]()

    def has_ended() -> bool:
        lines.extend(errors.read(child.new_output()))
        return not child.running

    await_that(has_ended, limit_s=60, interval_s=0.01)
    lines += [*errors.read(child.new_output()), *errors.read("")]
    first, tenth, critical = [line for line in lines if line.startswith("server: ")]
    assert "| ERROR   | prefect.server.services - [0 ms] schedule_deployments: LookupError: no run for" in first
    assert "[9 ms]" in tenth and tenth.endswith("(10 times so far)")
    assert critical.endswith("| CRITICAL | prefect.server.api - cannot write")
    assert len(lines) == 3 and "s3cret" not in str(lines)
    child.end()


def test_a_traceback_that_arrives_in_pieces_stays_one_line_and_names_its_last_exception() -> None:
    errors = ErrorLines()
    pieces = [
        "INFO:     started\nERROR:    Exception in ASGI application\nTraceback (most recent call last):\n  File x\n",
        "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n",
        "sqlalchemy.exc.OperationalError: database is locked\n[SQL: INSERT]\n(Background on this error at: https://x)\n",
    ]
    assert [line for piece in pieces for line in errors.read(piece)] == []
    (line,) = errors.read("")
    assert (
        line == "server: ERROR:    Exception in ASGI application: sqlalchemy.exc.OperationalError: database is locked"
    )
    assert list(errors.read("")) == []
