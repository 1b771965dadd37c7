"""A training worker is killed in the middle of an epoch: the weights are those of an uninterrupted training."""

from collections.abc import Iterator

import pytest

from storage import manifest
from tests.trainings import Trainings, trainings, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    """One Ray for all trainings."""
    with trainings(tmp_path_factory.mktemp("trainings")) as made:
        yield made


@pytest.mark.parametrize(
    ("loader", "workers"), [("resident", 1), ("resident", 3), ("ray-data", 1), ("ray-data", 2), ("ray-data", 3)]
)
def test_a_training_whose_worker_is_killed_ends_with_the_weights_of_an_undisturbed_one(
    made: Trainings, loader: str, workers: int
) -> None:
    name = f"{loader.replace('-', '')}{workers}"
    whole, _ = made.run(f"whole-{name}-0123456789ab", loader=loader, workers=workers, kill=False)
    struck, events = made.run(f"struck-{name}-0123456789ab", loader=loader, workers=workers, kill=True)
    kills = [number for number, event in enumerate(events) if "struck" in event]
    assert kills, "no worker was killed"
    after = [event["at"] for event in events[kills[0] :] if event["point"] == "step"]
    assert "epoch 3" in after and "epoch 1" not in after, "it began again instead of going on"
    assert weights(struck) == weights(whole)


def test_a_training_that_no_longer_improves_commits_the_first_of_its_equal_epochs(made: Trainings) -> None:
    still = {"model": "squeezenet1-1", "learning_rate": 1e-30, "epochs": 5}
    checkpoint, _ = made.run("still-0123456789ab", loader="resident", workers=1, kill=False, **still)
    history = manifest.load(checkpoint).statistics["history"]
    assert len({row["validation_loss"] for row in history}) == 1 < len(history)
    assert manifest.load(checkpoint).statistics["best_epoch"] == 1
