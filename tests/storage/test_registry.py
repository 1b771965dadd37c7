"""The registry of champions is append-only and complete, and a decision based on an outdated state is refused."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage import files, registry
from storage.decision import Decision
from storage.kinds import CheckpointURI, EvaluationURI
from storage.manifest import Damaged
from storage.registry import Superseded
from storage.uri import URI, Root


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


def test_history_keeps_every_decision_in_order_and_the_latest_one_counts(root: Root) -> None:
    assert (registry.champion(root, "mnist"), registry.latest(root, "mnist")) == (None, None)
    rejected = decision(1, champion=None, challenger="/checkpoints/worse-1")
    decisions = [rejected, *(decision(number) for number in range(2, 11))]
    decisions.append(decision(11, champion="/checkpoints/b-2", challenger="/checkpoints/b-2"))
    decisions.append(decision(12, champion="/checkpoints/b-2", challenger="/checkpoints/worse-2"))
    champions = [None, *["/checkpoints/a-1"] * 9, "/checkpoints/b-2", "/checkpoints/b-2"]
    for each, champion in zip(decisions, champions, strict=True):
        registry.append(root, "mnist", each)
        assert registry.champion(root, "mnist") == champion
    for name in ("README.md", "000013", "7.json", "000013.json.bak"):
        files.put(root.child(f"registry/mnist/{name}"), b"")
    assert registry.history(root, "mnist") == decisions
    assert registry.champion(root, "cifar10") is None


def test_one_of_four_deciders_at_once_is_recorded_and_stays(root: Root) -> None:
    def decide(name: int) -> Decision | None:
        own_decision = decision(1, challenger=f"/checkpoints/a-{name}")
        try:
            registry.append(root, "mnist", own_decision)
        except Superseded as error:
            assert "000001.json was recorded in the meantime" in str(error)
            return None
        return own_decision

    with ThreadPoolExecutor(4) as pool:
        recorded = [own_decision for own_decision in pool.map(decide, range(4)) if own_decision]
    assert recorded == registry.history(root, "mnist")


class TestWhole:
    """No byte of what was decided can change without being noticed, by the name of its file."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Root:
        """A root in which b took charge after a, was rolled back, and is judged again."""
        root = Root(str(tmp_path))
        registry.append(root, "mnist", decision(1).made_by("ada"))
        registry.append(root, "mnist", decision(2, champion="/checkpoints/b-2", challenger="/checkpoints/b-2"))
        registry.append(root, "mnist", decision(3).model_copy(update={"withdraws": CheckpointURI("/checkpoints/b-2")}))
        registry.append(root, "mnist", decision(4, challenger="/checkpoints/b-2"))
        return root

    def entry(self, root: Root, number: int) -> URI:
        """Where a decision lies."""
        return root.child(f"registry/mnist/{number:06d}.json")

    @pytest.mark.parametrize("number", [1, 2, 3, 4])
    def test_every_flipped_bit_is_noticed(self, root: Root, number: int) -> None:
        content = files.read(self.entry(root, number))
        meaningful = [at for at, byte in enumerate(content) if not chr(byte).isspace()]
        for at in meaningful[::3]:
            Path(self.entry(root, number)).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            with pytest.raises(Damaged, match=f"registry/mnist/{number:06d}.json"):
                registry.history(root, "mnist")

    @pytest.mark.parametrize(
        ("number", "is_rewritten", "message"),
        [
            *((number, False, f"00000{number}.json is missing; restore it") for number in (1, 2, 3)),
            (3, True, "000003.json does not match the digest in 000004.json"),
        ],
    )
    def test_missing_or_rewritten_decision_is_noticed_by_all_who_ask(
        self, root: Root, number: int, is_rewritten: bool, message: str
    ) -> None:
        files.remove(self.entry(root, number))
        if is_rewritten:
            registry.append(root, "mnist", decision(number))
        for ask in (registry.history, registry.latest, registry.champion):
            with pytest.raises(Damaged, match=message):
                ask(root, "mnist")

    def test_decision_that_a_listing_missed_is_there(self, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
        decisions = registry.history(root, "mnist")
        monkeypatch.setattr(files, "children", lambda folder: ["000001.json", "000004.json"])
        assert registry.history(root, "mnist") == decisions

    def test_what_is_appended_to_a_damaged_entry_is_refused(self, root: Root) -> None:
        content = files.read(self.entry(root, 4))
        files.put(self.entry(root, 4), content.replace(b"better", b"bettes"))
        with pytest.raises(Damaged, match=r"000004.json is not what was recorded"):
            registry.append(root, "mnist", decision(5))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda first, second: first.replace(b'"/checkpoints/a-1"', b'"no URI"', 1),
                r"cannot be read \(champion: ",
            ),
            (lambda first, second: second, "contains another number, 2"),
            (lambda first, second: b'{"number": 1', r"cannot be read \(JSON: "),
            (
                lambda first, second: first.replace(b"{", b'{"seal": 1,', 1),
                "was written by a newer version than this one, ",
            ),
        ],
    )
    def test_garbled_decision_is_refused_by_name(
        self, root: Root, change: Callable[[bytes, bytes], bytes], message: str
    ) -> None:
        first, second = (files.read(self.entry(root, number)) for number in (1, 2))
        files.put(self.entry(root, 1), change(first, second))
        with pytest.raises(Damaged, match=f"registry/mnist/000001.json {message}"):
            registry.history(root, "mnist")
