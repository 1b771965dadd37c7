"""Which errors are permanent and which are retried."""

import errno

import pytest
import torch

from storage import error_policy
from storage.manifest import Damaged
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.errors import JobFailed, JobRefused
from tasks.learning.checkpoint import WrongResume
from tasks.learning.downloading import DownloadFailed, WrongChecksum
from tasks.learning.epoch_metrics import NonFiniteLoss
from tasks.learning.user_code import UserCodeError

NCCL = "NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"
CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"


PERMANENT: list[Exception] = [
    *(ValueError("epochs must be >= 1, got 0"), FileNotFoundError("a.parquet"), PermissionError("root")),
    *(Damaged("part"), DeadlineExceeded("60 s"), WrongChecksum("sha256"), NonFiniteLoss("nan"), WrongResume("seed")),
    *(UserCodeError("line 4"), JobRefused("no"), OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota")),
    *(MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(NCCL), RuntimeError(CUBLAS)),
]
TRANSIENT: list[Exception] = [
    *(ConnectionError("reset"), TimeoutError(), OSError(errno.EIO, "disk"), RuntimeError("gloo: connection closed")),
    *(JobFailed("a worker was lost"), JobFailed("ActorDiedError: CUDA mismatch\nnode ran out of memory")),
    DownloadFailed("no"),
]


@pytest.mark.parametrize("error", [*PERMANENT, *TRANSIENT], ids=repr)
def test_an_error_that_a_retry_would_meet_again_is_permanent(error: Exception) -> None:
    assert error_policy.is_permanent(error) == (error in PERMANENT)
