"""Memory that a process requests from the kernel, batch after batch."""

import os
import platform
import subprocess
import sys

import pytest

_BATCHES = """
import resource, sys
import numpy as np
from storage import process

if sys.argv[1:] == ["keep"]:
    process.keep_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    # Two at a time, the later one gone first: what makes glibc give the top of its heap back.
    batch, after = np.ones(2**20), np.ones(2**20)
    del after, batch
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_taken(*arguments: str) -> int:
    """How often a process that makes hundreds of megabytes of batches had to be given a page."""
    command = [sys.executable, "-c", _BATCHES, *arguments]
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    env = usual | {"NUMPY_MADVISE_HUGEPAGE": "0"}  # else they come 512 at a time
    return int(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory in its own way")
def test_the_memory_of_one_batch_is_kept_for_the_next() -> None:
    assert pages_taken("keep") < pages_taken() / 4
