"""Past and present champions, and the commands that change them."""

from pathlib import Path

import pytest

from storage import champions, files, manifest, registry
from storage.decision import Decision
from storage.kinds import CheckpointURI, EvaluationURI
from storage.manifest import Damaged
from storage.uri import Root
from tests import committed
from tests.committed import DATA


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A root on a disk."""
    return Root(f"{tmp_path}/root")


def history(story: str) -> list[Decision]:
    """Decisions from words: `B` promotes B, `b` rejects it, `<B` rolls back to B."""
    decisions: list[Decision] = []
    champion: CheckpointURI | None = None
    for number, word in enumerate(story.split(), start=1):
        challenger = CheckpointURI(f"/checkpoints/{word[-1].upper()}-1")
        before, champion = champion, champion if word.islower() else challenger
        decisions.append(
            Decision(
                number=number,
                champion=champion,
                challenger=challenger,
                evaluation=EvaluationURI(f"/evaluations/{number}"),
                promoted=not word.islower(),
                withdraws=before if word[0] == "<" else None,
                reason="it is better",
            )
        )
    return decisions


@pytest.mark.parametrize(
    ("story", "names"),
    [
        ("a", ""),
        ("A A b", "A"),
        ("a B", "B"),
        ("A B c C", "A B C"),
        ("A B A", "A B A"),
        ("A B C <B c", "A B"),
        ("A B C <B <A", "A"),
        ("A B C <B D <B", "A B"),
        ("A B C A <C", "A B C"),
    ],
)
def test_a_rollback_takes_the_last_champion_away_and_a_promotion_adds_one(story: str, names: str) -> None:
    stack = champions.promotion_stack(history(story))
    assert [str(decision.champion)[-3] for decision in stack] == names.split()


def test_rollback_goes_further_back_each_time_until_there_is_no_earlier_champion(root: Root) -> None:
    models = [committed.run(root, name) for name in ("first", "second", "third")]
    for model in models:
        committed.decide(root, model)
    committed.decide(root, models[2], challenger=models[0])
    for model, withdrawn in ((models[1], models[2]), (models[0], models[1])):
        decision = champions.rollback(root, DATA)
        assert registry.champion(root, DATA) == model.checkpoint
        assert decision.evaluation == model.evaluation
        assert decision.reason == f"rolled back by hand from checkpoints/{withdrawn.checkpoint.name}"
        assert withdrawn.checkpoint in registry.withdrawn(registry.history(root, DATA))
    with pytest.raises(ValueError, match=f"registered model: {DATA} has no previous champion; .*promote URI"):
        champions.rollback(root, DATA)
    assert len(registry.history(root, DATA)) == 6


def test_a_registered_model_without_a_champion_is_refused_with_the_names_of_those_that_have_one(root: Root) -> None:
    with pytest.raises(
        ValueError, match=f"^{root} has no champion of 'mnist'; train a model first: data-to-model run$"
    ):
        champions.require_champion(root, "mnist")
    decision = history("A")[0]
    registry.append(root, "mnist", decision.model_copy(update={"champion": None, "promoted": False}))
    with pytest.raises(ValueError, match="no champion of 'mnist'; no model has passed the gate "):
        champions.require_champion(root, "mnist")
    for name in ("cifar10", "photos-0a1b2c3d"):
        registry.append(root, name, decision)
    registry.append(root, "damaged", decision)
    files.put(root.child("registry/damaged/000001.json"), b"{}")
    assert champions.require_champion(root, "cifar10") == decision.champion
    names = "; choose one: champion:cifar10, champion:photos-0a1b2c3d$"
    with pytest.raises(ValueError, match=f"^{root} has no champion of 'mnist'{names}"):
        champions.require_champion(root, "mnist")


def test_judged_are_promoted_and_rejected_checkpoints_of_all_registered_models_that_can_be_read(root: Root) -> None:
    model, worse, other = (committed.run(root, name) for name in ("model", "worse", "other"))
    committed.decide(root, model)
    committed.decide(root, model, challenger=worse)
    committed.decide(root, other, data="letters")
    files.put(root.child("registry/damaged/000001.json"), b"garbage")
    assert champions.judged(root) == {run.checkpoint.fingerprint for run in (model, worse, other)}


def test_rollback_to_a_damaged_or_missing_checkpoint_is_refused(root: Root) -> None:
    first, second = committed.run(root, "first"), committed.run(root, "second")
    for model in (first, second):
        committed.decide(root, model)
    place = first.checkpoint.child(manifest.load(first.checkpoint).files[0].path)
    files.put(place, files.read(place)[:-1] + b"x")
    with pytest.raises(Damaged, match="SHA-256"):
        champions.rollback(root, DATA)
    files.remove(first.checkpoint)
    with pytest.raises(ValueError, match="does not exist any more"):
        champions.rollback(root, DATA)
    assert registry.champion(root, DATA) == second.checkpoint
