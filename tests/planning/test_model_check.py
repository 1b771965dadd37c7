"""A model that cannot be loaded without the user's code is known before a run."""

from pathlib import Path
from typing import Any

import pytest

from storage import commits, registry
from storage.decision import Decision
from storage.uri import CheckpointURI, Root
from tasks.learning import recipes
from tasks.planning import make_plan


def test_a_champion_whose_code_is_not_here_is_told_before_the_training(tmp_path: Path) -> None:
    root = Root(str(tmp_path / "root"))
    champion = CheckpointURI(root.child("checkpoints/mine-0123456789ab"))
    model = {"model": "mine.py:network@0123456789ab", "image_shape": [28, 28, 1], "classes": list("0123456789")}
    commits.commit(champion, kind="checkpoint", parents={}, parameters={}, listed=[], statistics={"model": model})
    about: dict[str, Any] = {"evaluation": "", "promoted": True, "reason": "", "gate": {}, "metrics": {}}
    registry.append(root, "mnist-sample", Decision(number=1, champion=champion, challenger=champion, **about))
    with pytest.raises(
        ValueError, match=rf"^--register-as: .*'mnist-sample': {champion}: mine.py:network@0123456789ab "
    ):
        make_plan.make_plan(storage=root, recipe=recipes.load("mnist-sample-resnet18"))
