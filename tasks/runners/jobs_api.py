"""Ray's Jobs API: a client, and the environment of jobs."""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.manifest import JSON
from storage.s3 import ENDPOINTS
from tasks.jobs import dashboard

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient
    from requests import Response

CODE = Path(__file__).resolve().parents[2]
"""Folder of the packages `tasks` and `storage`."""
JOB_ENV = {
    # The default of 2 s costs a small run more than its own work takes; each check interrupts the training.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a call to Ray while the job disconnects would start another Ray
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # else the output of workers appears twice
    "RAY_COLOR_PREFIX": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_DATA_LOG_LEVEL": "WARNING",
    "PYTHONUNBUFFERED": "1",
}
"""Environment of every job."""


def connect(address: str) -> "JobSubmissionClient":
    """Return a client whose requests time out; raise Ray's own error if nothing answers at `address`."""
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):
        def _do_request(self, method: str, endpoint: str, **options: Any) -> "Response":
            answer: Response = super()._do_request(method, endpoint, **{"timeout": 30, **options})  # seconds
            # Of a proxy whose head is away, or of a head that starts.
            if answer.status_code >= 500 and method != "POST":
                raise ConnectionError(f"HTTP {answer.status_code}: {answer.text[:200]}")
            return answer

    for name in ("ray", "ray.dashboard.modules.dashboard_sdk"):  # they log every package that is uploaded with a job
        logging.getLogger(name).setLevel(logging.WARNING)
    return Client(address)


@contextlib.contextmanager
def job_runtime_env(packages: Sequence[str] = ()) -> Iterator[JSON]:
    """Yield the runtime environment of a job on a cluster, for as long as the block lasts.

    Its working directory is a copy of `packages` and of this checkout's code: Ray imports from there before any other
    place, on the driver and on each worker. The variables are those for S3's endpoint and region, never its keys, since
    Ray's dashboard shows a job's environment.
    """
    names = (*ENDPOINTS, "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_CA_BUNDLE")
    along = {name: value for name, value in os.environ.items() if name in names}
    shown = {dashboard.NAME: "1"} if dashboard.is_on() else {}
    with tempfile.TemporaryDirectory(prefix="pipeline-job-") as folder:
        for package in (CODE / "tasks", CODE / "storage", *map(Path, packages)):
            shutil.copytree(package, Path(folder, package.name), ignore=shutil.ignore_patterns("__pycache__"))
        yield {"env_vars": JOB_ENV | along | shown, "working_dir": folder}
