"""Memory that a process requests from the kernel, batch after batch."""

import os
import platform
import subprocess
import sys

import pytest

_BATCHES = """
import resource, sys, threading
import numpy as np
from storage import process

def count_pages() -> None:
    if "keep" in sys.argv:
        process.keep_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        # Three at a time: more than one heap of a thread holds. The later ones are freed first: then glibc gives the
        # top of its heap back.
        batches = [np.ones(3 * 2**20) for _ in range(3)]
        while batches:
            batches.pop()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

if "thread" in sys.argv:
    thread = threading.Thread(target=count_pages)
    thread.start()
    thread.join()
else:
    count_pages()
"""


def pages_taken(*arguments: str) -> int:
    """How often a process that makes hundreds of megabytes of batches had to be given a page."""
    command = [sys.executable, "-c", _BATCHES, *arguments]
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    env = usual | {"NUMPY_MADVISE_HUGEPAGE": "0"}  # else they come 512 at a time
    return int(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory in its own way")
@pytest.mark.parametrize("where", ["main", "thread"])
def test_the_memory_of_one_batch_is_kept_for_the_next(where: str) -> None:
    assert pages_taken(where, "keep") < pages_taken(where) / 4
