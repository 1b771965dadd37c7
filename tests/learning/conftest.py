"""Fixtures for training: the digits that come with the project, and a model of some kilobytes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tasks.learning.sources import Split
from tasks.learning.sources.mnist_sample import SOURCE
from tests.learning import training
from tests.mirrors import fetch


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Split]:
    """The splits `train` (6,000 digits) and `test` (1,000) of the data set `mnist-sample`."""
    folder = tmp_path_factory.mktemp("digits")
    fetch(SOURCE, folder, *SOURCE.mirrors)
    return {split.name: split for split in SOURCE.read(folder)}


@pytest.fixture(scope="module")
def more_models() -> Iterator[None]:
    """The models of the tests, such as `small`."""
    with training.more_models():
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Arithmetic in one thread: sums are taken in the same order on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def module_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the tests of one module."""
    return tmp_path_factory.mktemp("module")
