"""More epochs after the end: only what is new is trained, and the bytes are those of a training from the start."""

import json
from pathlib import Path
from typing import Any

import pytest

from storage import files, manifest
from storage.kinds import CHECKPOINT, DatasetURI
from storage.uri import Root
from tasks.jobs.train import continuing
from tasks.stages import Train
from tests.jobs import raw

pytestmark = pytest.mark.usefixtures("more_models")

SCHEDULE: dict[str, Any] = {"schedule": "warmup-constant-decay"}
"""With it, 4 epochs share 3 with any longer training, 7 share 5, and 9 share 6."""
OPTIONS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "sgd": {"optimizer": "sgd", "micro_batches": 2},
    "all that draws": {
        "model": "drawing",
        "policy": "trivial",
        "erasing": 0.5,
        "mixup": 0.2,
        "class_weights": "balanced",
    },
    "streaming": {"loader": "streaming", "batch_size": 0},
    "the best epoch comes before the decay": {"learning_rate": 0.3, "label_smoothing": 0.0},
}


def to_train(folder: Path, prepared: DatasetURI, epochs: int, seed: int = 0, **changes: Any) -> Train:
    return raw.to_train(Root(str(folder)), prepared, epochs=epochs, seed=seed, **SCHEDULE | changes)


def result(stage: Train) -> dict[str, Any]:
    """What must be the same: digests of weights and optimizer, history and chosen epoch."""
    committed = manifest.load(stage.target)
    digests = [file and file.sha256 for file in map(committed.file, ("weights", "training"))]
    statistics = committed.statistics_of(CHECKPOINT)
    return {"digests": digests, "history": statistics.history, "best": statistics.best_epoch}


@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_more_epochs_train_only_what_is_new_and_give_the_bytes_of_a_training_from_the_start(
    prepared: DatasetURI, tmp_path: Path, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    short, longer, longest = (to_train(tmp_path, prepared, epochs, **changes) for epochs in (4, 7, 9))
    whole = to_train(tmp_path / "whole", prepared, 9, **changes)
    with caplog.at_level("INFO"):
        trained = [raw.train(stage, checkpoint_s=60) for stage in (short, longer, longest, whole)]
    assert trained == [[1, 2, 3, 4], [4, 5, 6, 7], [6, 7, 8, 9], [*range(1, 10)]]
    assert f"continues {longer.target.name} after its epoch 5, the last one before" in caplog.text
    assert longest.target.name == whole.target.name and result(longest) == result(whole)
    assert "best" not in str(changes) or result(whole)["best"] < 6
    (source,) = manifest.load(longest.target).files_of("continues-")
    recorded = json.loads(manifest.read_file(longest.target, source))
    assert recorded["checkpoint"].endswith(longer.target.name) and recorded["epoch"] == 5
    assert not manifest.load(whole.target).files_of("continues-")


@pytest.mark.parametrize("cut", [4, 5, 6, 7])
def test_a_continued_training_that_was_killed_goes_on(prepared: DatasetURI, tmp_path: Path, cut: int) -> None:
    short, longer = (to_train(tmp_path, prepared, epochs) for epochs in (4, 7))
    whole, longest = to_train(tmp_path / "whole", prepared, 7), to_train(tmp_path, prepared, 9)
    for stage in (short, whole):
        raw.train(stage, cut=3)
        raw.train(stage)
    assert raw.train(longer, cut=cut) == [*range(4, cut)]
    assert raw.train(longer) == [*range(cut, 8)]
    assert result(longer) == result(whole)
    assert raw.train(longest) == [6, 7, 8, 9], "the state was kept, although the training was killed around it"


@pytest.mark.parametrize("loss", ["removed", "damaged"])
def test_without_the_finished_training_all_epochs_are_trained_to_the_same_bytes(
    prepared: DatasetURI, tmp_path: Path, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    short, longer, whole = (to_train(tmp_path / root, prepared, n) for root, n in (("", 4), ("", 7), ("whole", 7)))
    for stage in (short, whole):
        raw.train(stage)
    if loss == "removed":
        files.remove(short.target)
    else:
        kept = manifest.load(short.target).files_of("constant/")
        files.put(short.target.child(kept[-1].path), b"damaged")
    with caplog.at_level("INFO"):
        assert raw.train(longer) == [*range(1, 8)]
    assert ("is damaged: it has 7 bytes instead of" in caplog.text) == (loss == "damaged")
    assert result(longer) == result(whole)


def test_what_cannot_be_continued_starts_again_and_says_why(
    prepared: DatasetURI, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    one_cycle, longer = (to_train(tmp_path, prepared, epochs, schedule="one-cycle") for epochs in (2, 3))
    raw.train(one_cycle)
    with caplog.at_level("INFO"):
        assert raw.train(longer) == [1, 2, 3]
    why = "the learning rate depends on the number of epochs without schedule=warmup-constant-decay"
    assert f"trains all epochs, also the ones of {one_cycle.target.name}: {why}" in caplog.text
    assert not manifest.load(longer.target).files_of("constant/")
    short, longer, other = (to_train(tmp_path, prepared, *how) for how in ((2,), (3,), (3, 1)))
    raw.train(short)
    data = manifest.load(prepared)
    continuing.begin(longer, data, workers=2)
    continuing.begin(longer, data.model_copy(update={"files": ()}), workers=1)
    continuing.begin(other, data, workers=1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2].partition(" (")[0] for line in lines] == [
        "it used 1 worker, and this training uses 2",
        "its dataset has been made again since then, with other bytes",
    ]
    assert not files.children(longer.scratch) and not files.children(other.scratch)
