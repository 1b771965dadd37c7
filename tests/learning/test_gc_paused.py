"""`gc_paused` restores the garbage collector's state, and freezes what was imported."""

import gc
from collections.abc import Iterator

import pytest

from storage.process import gc_paused


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Running, whatever a test does with it."""
    gc.enable()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_inside_and_what_was_created_there_is_frozen_even_after_a_failed_import() -> None:
    with pytest.raises(ImportError), gc_paused():
        assert not gc.isenabled()
        imported: list[list[int]] = [[]]
        raise ImportError("no module named torch")
    assert gc.isenabled() and not any(each is imported for each in gc.get_objects())


def test_disabled_collector_stays_disabled() -> None:
    gc.disable()
    with gc_paused():
        pass
    assert not gc.isenabled() and not gc.get_freeze_count()
