"""Ray's Jobs API: a client whose every request ends, and what goes along with a job to a cluster."""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.s3 import ENDPOINTS
from storage.uri import ALLOWED_ROOTS
from tasks.jobs import dashboard

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

CODE = Path(__file__).resolve().parent.parent
"""Where the packages `tasks` and `storage` lie."""

_REQUEST_S = 30
"""How long one request to Ray may take."""
JOB_ENV = {
    # The default of two seconds costs a small run more than its own work takes; each look interrupts the training.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # what asks Ray for something while it leaves would make it start another
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # what workers print would come twice
    "RAY_COLOR_PREFIX": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Environment of every job."""


def connect(address: str) -> "JobSubmissionClient":
    """A client whose every request ends; raises what Ray raises when nobody answers at `address`."""
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):
        def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
            return super()._do_request(method, endpoint, **{"timeout": _REQUEST_S, **options})

    for name in ("ray", "ray.dashboard.modules.dashboard_sdk"):  # they tell of every package that goes with a job
        logging.getLogger(name).setLevel(logging.WARNING)
    return Client(address)


def what_goes_along() -> dict[str, Any]:
    """The runtime environment of a job on a cluster: this checkout's code, where S3 is and what may be used, NCCL's.

    With a full dashboard also what fills the part of Ray Train: whether the cluster's own has that is the cluster's.

    Not the keys, since Ray's dashboard shows a job's environment.
    """
    names = (*ENDPOINTS, "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_CA_BUNDLE", ALLOWED_ROOTS)
    along = {name: value for name, value in os.environ.items() if name in names or name.startswith("NCCL_")}
    shown = dashboard.TRAIN_STATE if dashboard.kind() == dashboard.FULL else {}
    return {"env_vars": JOB_ENV | along | shown, "py_modules": [str(CODE / "tasks"), str(CODE / "storage")]}
