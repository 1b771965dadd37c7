"""`gc_paused` restores the garbage collector's state, and freezes what was imported."""

import gc
from collections.abc import Iterator

import pytest

from storage.process import gc_paused


@pytest.fixture
def collector() -> Iterator[None]:
    """Running, whatever a test does with it."""
    gc.enable()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("collector")
class TestGcPaused:
    def test_nothing_is_collected_inside_and_again_outside(self) -> None:
        with gc_paused():
            assert not gc.isenabled()
        assert gc.isenabled()

    def test_objects_created_inside_are_frozen(self) -> None:
        with gc_paused():
            imported: list[list[int]] = [[]]
        assert not any(each is imported for each in gc.get_objects())

    def test_a_failed_import_leaves_the_collector_on(self) -> None:
        with pytest.raises(ImportError), gc_paused():
            raise ImportError("no module named torch")
        assert gc.isenabled()

    def test_disabled_collector_stays_disabled(self) -> None:
        gc.disable()
        with gc_paused():
            pass
        assert not gc.isenabled() and not gc.get_freeze_count()
