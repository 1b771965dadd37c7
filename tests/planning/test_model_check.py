"""What a model cannot do is known before a run: be loaded without the user's code."""

from pathlib import Path

import pytest

from storage import commits
from storage.uri import CheckpointURI, Root
from tasks.learning import recipes
from tasks.planning import make_plan
from tests.storage.results import promote


def test_a_champion_whose_code_is_not_here_is_told_before_the_training(tmp_path: Path) -> None:
    root = Root(str(tmp_path / "root"))
    champion = CheckpointURI(root.child("checkpoints/mine-0123456789ab"))
    model = {"model": "mine.py:network@0123456789ab", "image_shape": [28, 28, 1], "classes": list("0123456789")}
    commits.commit(champion, kind="checkpoint", parents={}, parameters={}, listed=[], statistics={"model": model})
    promote(root, "mnist-sample", champion)
    with pytest.raises(
        ValueError, match=rf"^--register-as: .*'mnist-sample': {champion}: mine.py:network@0123456789ab "
    ):
        make_plan.make_plan(storage=root, recipe=recipes.load("mnist-sample-resnet18"))
