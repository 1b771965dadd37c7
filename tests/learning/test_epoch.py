"""What is said of an epoch: how long it waited, and when that was too long."""

import pytest

from tasks.learning.epoch import wait_hints


def row(epoch: int, seconds: float, *, data: float = 0.0, checkpoint: float = 0.0) -> dict[str, float]:
    return {"epoch": float(epoch), "seconds": seconds, "data_wait_s": data, "checkpoint_wait_s": checkpoint}


def test_first_epoch_that_waited_too_long_is_named_with_what_helps_once_for_each_kind() -> None:
    history = [row(1, 100, data=4), row(2, 100, data=12, checkpoint=6), row(3, 100, data=90, checkpoint=90)]
    data, checkpoints = wait_hints(history)
    assert data[0] == 2 and data[1].startswith("waiting for data took 12 % of epoch 2: --set loader=resident")
    assert checkpoints[0] == 2 and checkpoints[1].startswith("waiting for checkpoints took 6 % of epoch 2: storage")


@pytest.mark.parametrize("history", [row(1, 100, data=5), row(1, 1.5, data=0.9), row(1, 0), {"epoch": 1.0}])
def test_short_waits_and_histories_without_times_get_no_hint(history: dict[str, float]) -> None:
    assert list(wait_hints([history])) == []
