"""The registry of champions is append-only, and nobody decides on what has changed meanwhile."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from storage import files, registry
from storage.manifest import Damaged
from storage.registry import Decision, Superseded
from storage.uri import CheckpointURI, Root


def decision(
    number: int, *, champion: str | None = "/checkpoints/a-1", challenger: str = "/checkpoints/a-1"
) -> Decision:
    """A decision in which `challenger` was judged and `champion` came out."""
    return Decision(
        number=number,
        champion=champion,
        challenger=challenger,
        evaluation="/evaluations/a-1",
        promoted=champion == challenger,
        reason="it is better",
        gate={"margin": 0.0},
        metrics={"accuracy": 0.99},
    )


def test_there_is_no_champion_at_first(root: Root) -> None:
    assert (registry.champion(root, "mnist"), registry.latest(root, "mnist")) == (None, None)


def test_history_keeps_every_decision_in_order(root: Root) -> None:
    decisions = [decision(number) for number in range(1, 12)]
    for each in decisions:
        registry.append(root, "mnist", each)
    assert registry.history(root, "mnist") == decisions


def test_latest_decision_counts(root: Root) -> None:
    registry.append(root, "mnist", decision(1))
    registry.append(root, "mnist", decision(2, champion="/checkpoints/b-2", challenger="/checkpoints/b-2"))
    assert registry.champion(root, "mnist") == CheckpointURI("/checkpoints/b-2")


def test_champion_survives_a_rejected_challenger(root: Root) -> None:
    registry.append(root, "mnist", decision(1))
    registry.append(root, "mnist", decision(2, challenger="/checkpoints/worse-2"))
    assert registry.champion(root, "mnist") == CheckpointURI("/checkpoints/a-1")


def test_rejected_first_challenger_leaves_no_champion(root: Root) -> None:
    registry.append(root, "mnist", decision(1, champion=None))
    assert registry.champion(root, "mnist") is None


def test_number_that_is_taken_is_refused_and_the_first_decision_stays(root: Root) -> None:
    registry.append(root, "mnist", decision(1))
    with pytest.raises(Superseded, match="000001.json was recorded meanwhile"):
        registry.append(root, "mnist", decision(1, challenger="/checkpoints/other-2"))
    assert registry.history(root, "mnist") == [decision(1)]


def test_same_decision_after_a_lost_reply_is_recorded_once(root: Root) -> None:
    registry.append(root, "mnist", decision(1))
    registry.append(root, "mnist", decision(1))
    assert registry.history(root, "mnist") == [decision(1)]


def test_one_of_four_deciders_at_once_is_recorded(root: Root) -> None:
    def decide(name: int) -> Decision | None:
        mine = decision(1, challenger=f"/checkpoints/a-{name}")
        try:
            registry.append(root, "mnist", mine)
        except Superseded:
            return None
        return mine

    with ThreadPoolExecutor(4) as pool:
        recorded = [mine for mine in pool.map(decide, range(4)) if mine]
    assert recorded == registry.history(root, "mnist")


def test_data_sets_have_champions_of_their_own(root: Root) -> None:
    registry.append(root, "mnist", decision(1))
    assert registry.champion(root, "cifar10") is None


def test_other_files_in_the_folder_are_no_decisions(root: Root) -> None:
    registry.append(root, "mnist", decision(1))
    for name in ("README.md", "000002", "7.json", "000002.json.bak"):
        files.create(root.child(f"registry/mnist/{name}"), b"")
    assert registry.history(root, "mnist") == [decision(1)]


def test_garbled_decision_is_refused_by_name(root: Root) -> None:
    files.create(root.child("registry/mnist/000001.json"), b'{"number": 1')
    with pytest.raises(Damaged, match=r"registry/mnist/000001.json cannot be read \(JSON: "):
        registry.champion(root, "mnist")


@pytest.mark.parametrize("name", ["", "..", "a/b", "Mnist", "a" * 65])
def test_what_is_no_name_names_no_championship(root: Root, name: str) -> None:
    for use in (registry.history, registry.latest, registry.champion):
        with pytest.raises(ValueError, match="data set must be 1 to 64 of a-z, 0-9 and '-', got"):
            use(root, name)
    with pytest.raises(ValueError, match="data set must be"):
        registry.append(root, name, decision(1))
