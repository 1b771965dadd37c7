"""Use markers name what a run uses until it has succeeded."""

import time

import pytest

from storage import files, uses
from storage.manifest import Damaged
from storage.uri import URI, Root
from tests import committed


def used(root: Root, *, days_later: float = 0) -> set[URI]:
    """What garbage collection keeps that comes so much later."""
    return uses.used(root, since=time.time() + (days_later - uses.DAYS) * 24 * 3600)


def test_what_a_run_uses_is_named_until_it_has_succeeded(root: Root) -> None:
    first, second = (committed.place(root, "checkpoint", name) for name in ("first", "second"))
    with uses.using(root, [first], run="a") as use:
        assert first in used(root)
        use([second])
        assert used(root) >= {first, second}
        with uses.using(root, [second], run="b"):
            assert files.children(root.child("uses")) == ["a.json", "b.json"]
        assert used(root) >= {first, second}
    assert not used(root)


def test_a_run_that_failed_keeps_its_marker_for_a_week_and_the_same_run_takes_it_over(root: Root) -> None:
    uri = committed.place(root, "checkpoint", "model")
    with pytest.raises(KeyboardInterrupt), uses.using(root, [uri], run="a"):
        raise KeyboardInterrupt
    assert used(root, days_later=6.9) == {uri} and not used(root, days_later=7.1)
    with uses.using(root, [uri], run="a"):
        pass
    assert not files.walk(root.child("uses"))


def test_a_marker_that_cannot_be_read_is_named(root: Root) -> None:
    files.put(root.child("uses/a.json"), b"garbage")
    with pytest.raises(Damaged, match=r"uses/a\.json cannot be read; delete it when no run is active"):
        used(root)
