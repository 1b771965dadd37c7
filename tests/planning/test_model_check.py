"""What a model cannot do is known before a run: train on single rows, or be loaded without the user's code."""

from pathlib import Path
from typing import Any

import pytest

from storage import commits
from storage.uri import CheckpointURI, Root
from tasks.learning import recipes
from tasks.planning import make_plan, model_check
from tests.storage.results import promote


@pytest.mark.parametrize(
    ("workers", "settings", "asked"),
    [
        (None, {"batch_size": 1}, "--workers auto, micro_batches=1"),
        (2, {"batch_size": 2}, "--workers 2, micro_batches=1"),
        (2, {"batch_size": 9, "micro_batches": 4}, "--workers 2, micro_batches=4"),
    ],
)
def test_single_rows_are_refused_for_a_model_with_batch_normalisation_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int | None, settings: dict[str, Any], asked: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def check(**more: Any) -> None:
        recipe = recipes.override(recipes.load("mnist-sample-resnet18"), settings | more)
        model_check.check_training(make_plan.make_plan(storage=str(tmp_path), recipe=recipe, workers=workers))

    size = settings["batch_size"]
    with pytest.raises(ValueError, match=rf"^batch_size={size} gives a worker 1 row .*{asked}.* model resnet18 needs"):
        check()
    check(model="small-cnn")


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
