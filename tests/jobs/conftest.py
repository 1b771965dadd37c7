"""Common fixtures for trainings in this process."""

import pytest

from storage.kinds import DatasetURI
from storage.uri import Root
from tests.jobs import raw
from tests.learning.conftest import more_models

__all__ = ["more_models"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> DatasetURI:
    """About 150 training and 50 validation rows of 12 x 12 pixels."""
    root = Root(str(tmp_path_factory.mktemp("prepared")))
    spec = raw.to_prepare(root, raw.write(root, shape=(12, 12, 1), train=202, test=30))
    raw.run(spec)
    return spec.target
