"""The registry of champions is append-only and complete, and a decision based on an outdated state is refused."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from storage import files, registry
from storage.decision import Decision
from storage.manifest import Damaged
from storage.registry import Superseded
from storage.uri import URI, CheckpointURI, EvaluationURI, Root


def decision(
    number: int, *, champion: str | None = "/checkpoints/a-1", challenger: str = "/checkpoints/a-1"
) -> Decision:
    """A decision in which `challenger` was judged and `champion` came out."""
    return Decision(
        number=number,
        champion=CheckpointURI(champion) if champion else None,
        challenger=CheckpointURI(challenger),
        evaluation=EvaluationURI("/evaluations/a-1"),
        promoted=champion == challenger,
        reason="it is better",
        gate={"tolerance": 0.0},
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
    with pytest.raises(Superseded, match="000001.json was recorded in the meantime"):
        registry.append(root, "mnist", decision(1, challenger="/checkpoints/other-2"))
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


def entry(root: Root, number: int) -> URI:
    """Where a decision on MNIST lies."""
    return root.child(f"registry/mnist/{number:06d}.json")


class TestWhole:
    """No byte of what was decided can change without being noticed, by the name of its file."""

    @pytest.fixture
    def rolled_back(self, root: Root) -> Root:
        """A root in which b took charge after a, was rolled back, and is judged again."""
        registry.append(root, "mnist", decision(1))
        registry.append(root, "mnist", decision(2, champion="/checkpoints/b-2", challenger="/checkpoints/b-2"))
        registry.append(root, "mnist", decision(3).model_copy(update={"withdraws": CheckpointURI("/checkpoints/b-2")}))
        registry.append(root, "mnist", decision(4, challenger="/checkpoints/b-2"))
        return root

    def test_rollback_is_a_field_whatever_the_reason_says(self, rolled_back: Root) -> None:
        assert registry.withdrawn(registry.history(rolled_back, "mnist")) == {"/checkpoints/b-2"}

    @pytest.mark.parametrize("number", [1, 2, 3, 4])
    def test_every_flipped_bit_is_noticed(self, rolled_back: Root, number: int) -> None:
        content = files.read(entry(rolled_back, number))
        meaningful = [at for at, byte in enumerate(content) if not chr(byte).isspace()]
        for at in meaningful[:: 23 if rolled_back.is_s3 else 3]:
            files.put(entry(rolled_back, number), content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            with pytest.raises(Damaged, match=f"registry/mnist/{number:06d}.json"):
                registry.history(rolled_back, "mnist")

    def test_decision_with_a_number_of_seven_digits_is_part_of_the_history(self, rolled_back: Root) -> None:
        files.put(entry(rolled_back, 1_000_000), b"{}")
        with pytest.raises(Damaged, match=r"000005.json is missing; restore it"):
            registry.history(rolled_back, "mnist")

    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_missing_decision_is_noticed_by_all_who_ask(self, rolled_back: Root, number: int) -> None:
        files.remove(entry(rolled_back, number))
        uses: list[Callable[[Root, str], object]] = [registry.history, registry.latest, registry.champion]
        for use in uses:
            with pytest.raises(Damaged, match=f"00000{number}.json is missing; restore it"):
                use(rolled_back, "mnist")

    def test_rewritten_entry_does_not_match_the_digest_in_the_next_one(self, rolled_back: Root) -> None:
        files.remove(entry(rolled_back, 3))
        registry.append(rolled_back, "mnist", decision(3))
        for use in (registry.history, registry.latest):
            with pytest.raises(Damaged, match=r"000003.json does not match the digest in 000004.json"):
                use(rolled_back, "mnist")

    def test_what_is_appended_to_a_damaged_entry_is_refused(self, rolled_back: Root) -> None:
        content = files.read(entry(rolled_back, 4))
        files.put(entry(rolled_back, 4), content.replace(b"better", b"bettes"))
        with pytest.raises(Damaged, match=r"000004.json is not what was recorded"):
            registry.append(rolled_back, "mnist", decision(5))

    @pytest.mark.parametrize(("old", "new"), [(b'"ada"', b'"eve"'), (b'"decided": "2', b'"decided": "1')])
    def test_author_and_date_that_were_changed_are_noticed(self, root: Root, old: bytes, new: bytes) -> None:
        registry.append(root, "mnist", decision(1).made_by("ada"))
        content = files.read(entry(root, 1))
        assert json.loads(content)["decided"].endswith("Z")
        files.put(entry(root, 1), content.replace(old, new))
        with pytest.raises(Damaged, match=r"000001.json is not what was recorded"):
            registry.latest(root, "mnist")


def test_registered_models_have_champions_of_their_own(root: Root) -> None:
    registry.append(root, "mnist", decision(1))
    assert registry.champion(root, "cifar10") is None


def test_other_files_in_the_folder_are_no_decisions(root: Root) -> None:
    registry.append(root, "mnist", decision(1))
    for name in ("README.md", "000002", "7.json", "000002.json.bak"):
        files.put(root.child(f"registry/mnist/{name}"), b"")
    assert registry.history(root, "mnist") == [decision(1)]


def test_garbled_decision_is_refused_by_name(root: Root) -> None:
    files.put(root.child("registry/mnist/000001.json"), b'{"number": 1')
    with pytest.raises(Damaged, match=r"registry/mnist/000001.json cannot be read \(JSON: "):
        registry.champion(root, "mnist")


@pytest.mark.parametrize("name", ["", "..", "a/b", "Mnist", "a" * 65])
def test_invalid_name_of_a_registered_model_is_refused(root: Root, name: str) -> None:
    for use in (registry.history, registry.latest, registry.champion):
        with pytest.raises(ValueError, match="registered model must be 1 to 64 of a-z, 0-9 and '-', got"):
            use(root, name)
    with pytest.raises(ValueError, match="registered model must be"):
        registry.append(root, name, decision(1))
