"""A storage root with a champion, for predictions."""

import dataclasses
from pathlib import Path

import pytest

from storage.uri import Root
from tasks.learning.sources import Split
from tests.committed import promote
from tests.learning import training
from tests.learning.conftest import digits

__all__ = ["digits"]

NAMES = ("zero", "one", "zwei", "3", "4", "5", "6", "7", "8", "Äpfel")


@pytest.fixture(scope="session")
def models(digits: dict[str, Split], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage root with the champion of `letters`, which takes gray images of 28 x 28 pixels."""
    root = Root(str(tmp_path_factory.mktemp("models") / "data"))
    trainer = training.trainer(
        training.recipe(epochs=1), training.rows(digits["train"], 0, 64), training.rows(digits["test"], 0, 32)
    )
    trainer.model.spec = dataclasses.replace(trainer.model.spec, classes=NAMES)
    promote(root, "letters", training.commit(trainer, root, "letters"))
    return Path(root)
