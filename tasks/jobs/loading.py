"""Which loader feeds a training. No torch: a driver decides this before there is any worker."""

import math
from typing import Final

from storage.manifest import Manifest
from tasks.learning import images

RAY_DATA: Final = "ray-data"
SPLITS: Final = ("train", "validation")
"""What a training reads."""
_RESIDENT_BYTES = 2 * 2**30
"""Largest dataset, in bytes of pixels over all ranks, that `auto` holds in memory."""


def resolve(asked: str, prepared: Manifest, *, has_idle_nodes: bool) -> str:
    """Return the loader that `asked` means; `auto` never decides which bytes come out.

    `auto` holds up to 2 GiB of pixels in memory. More is streamed: by Ray Data where GPUs train and other nodes have
    CPUs to read for them (`has_idle_nodes`), else by the workers themselves. Both give the same batches.
    """
    if asked != "auto":
        return asked
    num_bytes = prepared.rows * math.prod(images.shape_of(prepared.columns["metadata"]))
    if num_bytes <= _RESIDENT_BYTES:
        return "resident"
    return RAY_DATA if has_idle_nodes else "streaming"
