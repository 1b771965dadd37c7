"""Every test runs on the CPU, and on a GPU if there is one; none needs Prefect."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from storage.kinds import DatasetURI
from storage.uri import Root
from tasks.jobs.main import run_here
from tasks.jobs.spec import JobSpec
from tasks.resources import devices
from tests.gpu import older_torch
from tests.jobs import raw
from tests.learning import training

older_torch.adapt()


@pytest.fixture(scope="session", params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, on which little is computed, then the GPU."""
    return _gpu() if request.param == "cuda" else torch.device("cpu")


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """The GPU, for what only a GPU does."""
    return _gpu()


def _gpu() -> torch.device:
    if trouble := devices.trouble():
        pytest.skip(f"no GPU to test on: {trouble}")
    return torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _settings_put_back() -> Iterator[None]:
    """Tests of both devices share the process, and with it the settings for arithmetic; CPUs compute in one thread."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    flags, threads = (cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)
    cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = flags


@pytest.fixture(autouse=True)
def _more_models() -> Iterator[None]:
    with training.more_models():
        yield


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> DatasetURI:
    """About 1,500 training and 500 validation images of CIFAR's shape, of three classes that can be told apart."""
    root = Root(str(tmp_path_factory.mktemp("prepared")))
    spec = raw.to_prepare(root, raw.write(root, shape=(32, 32, 3), train=2002, test=300))
    run_here(JobSpec(stage=spec), tell=lambda line: None)
    return spec.target


@pytest.fixture
def folder(prepared: DatasetURI, tmp_path: Path) -> Root:
    """A root of the test's own that holds the prepared images."""
    root = Root(str(tmp_path / "root"))
    place = Path(root.child(f"datasets/prepared/{prepared.name}"))
    shutil.copytree(Path(prepared), place)
    return root
