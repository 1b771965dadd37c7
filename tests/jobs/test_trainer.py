"""`LeanTrainer`: what it starts for its workers."""

import pytest
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig

from tasks.jobs.tuned.trainer import LeanTrainer


def lean(*, workers: int, use_gpu: bool = False) -> LeanTrainer:
    return LeanTrainer(print, timeout_s=60, scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu))


@pytest.mark.parametrize(
    ("workers", "use_gpu", "has_group"), [(1, False, False), (1, True, True), (2, False, True)], ids=str
)
def test_a_single_worker_on_cpus_gets_no_process_group(workers: int, use_gpu: bool, has_group: bool) -> None:
    config = lean(workers=workers, use_gpu=use_gpu).backend_config
    assert isinstance(config, TorchConfig) == has_group
