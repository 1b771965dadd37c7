"""What a model cannot do is known before a run: train on single rows, or be loaded without the user's code."""

from pathlib import Path
from typing import Any

import pytest

from storage import commits, registry
from storage.decision import Decision
from storage.uri import CheckpointURI, Root
from tasks.learning import recipes
from tasks.learning.epoch_metrics import smallest_piece
from tasks.planning import make_plan, model_check
from tasks.planning.plan import Plan


def plan(folder: Path, *, workers: Any = None, **settings: Any) -> Plan:
    recipe = recipes.override(recipes.load("mnist-sample-resnet18"), settings)
    made = make_plan.make_plan(storage=str(folder / "root"), recipe=recipe, workers=workers)
    model_check.check_training(made)
    return made


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize(
    ("workers", "settings", "asked"),
    [
        (None, {"batch_size": 1}, "--workers auto, micro_batches=1"),
        (2, {"batch_size": 2}, "--workers 2, micro_batches=1"),
        (2, {"batch_size": 9, "micro_batches": 4}, "--workers 2, micro_batches=4"),
    ],
)
def test_single_rows_are_refused_for_a_model_with_batch_normalisation_only(
    tmp_path: Path, workers: Any, settings: dict[str, Any], asked: str
) -> None:
    size = settings["batch_size"]
    with pytest.raises(
        ValueError, match=rf"^batch_size={size} gives a worker 1 row .*{asked}.* model resnet18 needs 2"
    ):
        plan(tmp_path, workers=workers, **settings)
    assert plan(tmp_path, workers=workers, model="small-cnn", **settings).recipe.training.batch_size == size


@pytest.mark.parametrize(
    ("batch_size", "world_size", "micro_batches", "rows"),
    [(128, 1, 1, 128), (10, 3, 1, 3), (10, 1, 4, 1), (9, 2, 2, 2), (2, 2, 1, 1)],
)
def test_the_smallest_piece_is_that_of_the_smallest_share(
    batch_size: int, world_size: int, micro_batches: int, rows: int
) -> None:
    assert smallest_piece(batch_size, world_size=world_size, micro_batches=micro_batches) == rows


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
        plan(tmp_path)
