"""Prefect's server for one run: `python start_server.py --factory prefect.server.api.server:create_app ...`.

Takes what `uvicorn` takes. Never imported by the pipeline.
"""

import functools
import sys
from datetime import timedelta
from pathlib import Path

_RARELY = timedelta(seconds=5)
"""How often it looks for work of its own, such as runs that are late, of which a server for one run has none."""

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # this folder's modules are not top-level ones
    from tasks.learning.imports import quickly

    with quickly():
        import prefect.server.api.server  # noqa: F401 - takes seconds
        import uvicorn
        from docket import Worker
        from prefect.server.api import background_workers

    worker = functools.partial(Worker, minimum_check_interval=_RARELY, scheduling_resolution=_RARELY)
    background_workers.Worker = worker  # type: ignore[assignment,attr-defined]
    uvicorn.main()
