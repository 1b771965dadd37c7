"""Ray Train's set-up of torch's process group, preceded by a check that each worker can use its GPU.

Without a usable GPU, NCCL fails in the set-up, before a worker runs this project's code, with an error that names
neither the node nor the reason, and that Ray Train and Prefect would retry.
"""

import dataclasses
from typing import Any

from ray.train.backend import Backend
from ray.train.torch import TorchConfig, get_device

from tasks.resources import devices, scaling

_TorchBackend: Any = TorchConfig().backend_cls
"""Ray Train's own set-up, which has no public name."""


@dataclasses.dataclass
class CheckedTorchConfig(TorchConfig):
    """Ray Train's `TorchConfig` with the check."""

    @property
    def backend_cls(self) -> type[Backend]:
        """Return the backend that checks first."""
        return _Checked


class _Checked(_TorchBackend):
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        if worker_group.get_resources_per_worker().get("GPU", 0):
            worker_group.execute(check_gpu)
        super().on_start(worker_group, backend_config)


def check_gpu() -> None:
    """Raise `UnusableGpu` if torch cannot use the GPU of this worker."""
    devices.choose("cuda", where=scaling.node_name(), number=get_device().index or 0)
