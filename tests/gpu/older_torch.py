"""The step's CUDA graphs with a torch that is older than the pinned one, as a machine with a GPU may have it."""

import functools
import inspect
from typing import Any

import torch


def adapt() -> None:
    """Let `make_graphed_callables` take `capture_error_mode`, which torch has since 2.14, and ignore it."""
    original: Any = torch.cuda.make_graphed_callables
    if "capture_error_mode" in inspect.signature(original).parameters:
        return

    @functools.wraps(original)
    def adapted(*arguments: Any, capture_error_mode: str, **options: Any) -> Any:
        return original(*arguments, **options)

    vars(torch.cuda)["make_graphed_callables"] = adapted
