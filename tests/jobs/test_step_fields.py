"""Recipe fields of a training's steps and checkpoints, in whole jobs: which epochs are kept, and where graphs run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, nll_loss

from storage import files, manifest, tables
from storage.kinds import CHECKPOINT, DatasetURI
from storage.uri import Root
from tasks.jobs.train import attempts, choices, train_loop
from tasks.learning import images, inference, training_state
from tasks.stages import Train
from tests.jobs import raw
from tests.jobs.raw import run
from tests.learning.training import same

pytestmark = pytest.mark.usefixtures("more_models")


@pytest.mark.parametrize("learning_rate", [0.002, 0.1])
def test_training_cut_between_checkpoints_repeats_the_epochs_since_and_commits_the_best_of_all_epochs(
    prepared: DatasetURI, tmp_path: Path, learning_rate: float
) -> None:
    root = Root(str(tmp_path))
    whole, cut = (
        raw.to_train(root, prepared, name=name, epochs=6, learning_rate=learning_rate) for name in ("whole", "cut")
    )
    assert raw.train(whole) == [1, 2, 3, 4, 5, 6]  # with a checkpoint of each
    raw.train(cut, cut=4, checkpoint_s=3600)
    assert _written(cut, attempt=1) == ["epoch-0001"], "after the first epoch"
    assert raw.train(cut, cut=6, checkpoint_s=3600) == [2, 3, 4, 5]
    assert _written(cut, attempt=2) == ["epoch-0002"], "after the first one of an attempt, however short"
    assert raw.train(cut, checkpoint_s=3600) == [3, 4, 5, 6]
    expected, resumed = (manifest.load(stage.target) for stage in (whole, cut))
    trained = [one.statistics_of(CHECKPOINT) for one in (expected, resumed)]
    assert trained[0].history == trained[1].history and len(trained[1].history) == 6
    lowest = min(trained[1].history, key=lambda epoch: epoch.validation_loss)
    assert trained[0].best_epoch == trained[1].best_epoch == lowest.epoch
    tensors = [
        {file.path: file.sha256 for file in one.files if "safetensors" in file.path} for one in (expected, resumed)
    ]
    assert tensors[0] == tensors[1] and len(tensors[0]) == 2


def _written(stage: Train, *, attempt: int) -> list[str]:
    """The epochs that an attempt left checkpoints of."""
    return [name for name in files.children(stage.scratch.child(f"attempt-{attempt}")) if name.startswith("epoch-")]


@pytest.mark.parametrize("is_preempted", [False, True])
def test_checkpoints_are_written_at_once_when_a_node_is_about_to_go_away(
    prepared: DatasetURI, tmp_path: Path, is_preempted: bool
) -> None:
    stage, reported = raw.to_train(Root(str(tmp_path)), prepared, epochs=5), list[tuple[str, int]]()
    context = raw.reader(
        "resident",
        checkpoint_s=3600,
        is_preempted=lambda: is_preempted,
        report=lambda folder, history: reported.append((folder.name, len(history))),
    )
    train_loop.train(stage, manifest.load(prepared), attempts.new_attempt(stage.scratch), context)
    (_, last), *_ = attempts.described(stage.scratch)
    epochs = range(1, 6) if is_preempted else sorted({1, last.best_epoch, 5})
    assert reported == [(f"epoch-{epoch:04d}", epoch) for epoch in epochs]
    assert _written(stage, attempt=1) == [name for name, _ in reported]


def test_training_that_stops_early_and_is_resumed_ends_at_the_same_epoch(
    prepared: DatasetURI, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, changes = Root(str(tmp_path)), {"epochs": 30, "early_stop": 2, "learning_rate": 0.1}
    whole, cut = (raw.to_train(root, prepared, name=name, **changes) for name in ("whole", "cut"))
    run(whole)
    statistics = manifest.load(whole.target).statistics_of(CHECKPOINT)
    last, best = len(statistics.history), statistics.best_epoch
    assert (statistics.stopped_early, last) == (True, best + 2)
    raw.train(cut, cut=last)
    with caplog.at_level("INFO"):
        assert raw.train(cut) == [last]
    assert f"stopped after epoch {last} of 30: no lower validation loss since epoch {best}" in caplog.text
    (model, meta), (expected, _) = (training_state.load_model(spec.target) for spec in (cut, whole))
    assert same(model.state_dict(), expected.state_dict()) and model.spec == expected.spec
    assert meta.epoch == best and model.spec.temperature == statistics.temperature != 1
    assert statistics.temperature == statistics.history[best - 1].temperature


def test_temperature_of_a_checkpoint_lowers_the_loss_of_validation_rows_and_changes_no_class(
    prepared: DatasetURI, tmp_path: Path
) -> None:
    spec = raw.to_train(Root(str(tmp_path)), prepared, label_smoothing=0.5)
    run(spec)
    pixels, labels = images.to_arrays(tables.read_split(prepared, "validation"), (12, 12, 1))
    model, meta = training_state.load_model(spec.target)
    with torch.inference_mode():
        logits = model(torch.from_numpy(pixels.copy()))
    loss = meta.history[meta.epoch - 1].validation_loss
    assert cross_entropy(logits, torch.tensor(labels)).item() == pytest.approx(loss, rel=1e-4)
    probabilities = inference.load(spec.target)(pixels)
    assert nll_loss(probabilities.log(), torch.tensor(labels)).item() < loss - 0.01
    assert torch.equal(probabilities.argmax(1), logits.argmax(1))


@pytest.mark.parametrize(
    ("changes", "workers", "message"),
    [
        ({"step": "graph", "device": "cuda"}, 2, "^step must be auto or eager with 2 workers, got 'graph'; a"),
        ({"batch_size": 1000}, 1, r"batch_size must be at least .* got 1000 with 1 worker and \d+ rows; change"),
        ({"batch_size": 3}, 4, r"batch_size must be at least .* got 3 with 4 workers and \d+ rows; change"),
    ],
)
def test_settings_with_which_some_worker_cannot_train_are_refused_before_they_start(
    prepared: DatasetURI, tmp_path: Path, changes: dict[str, Any], workers: int, message: str
) -> None:
    spec = raw.to_train(Root(str(tmp_path)), prepared, **changes)
    with pytest.raises(ValueError, match=message):
        choices.choose_loader(spec, manifest.load(prepared), workers=workers)


@pytest.mark.parametrize(
    ("gib", "free", "expected"),
    [
        (2, [], "resident"),
        (2.1, [], "streaming"),
        (39, [79], "resident"),
        (40, [79], "streaming"),
        (1.1, [2], "streaming"),
        (39, [20, 79, 79, 79], "resident"),
        (41, [20, 79, 79, 79], "streaming"),
    ],
    ids=str,
)
def test_rows_stay_in_half_of_the_memory_of_the_smallest_gpu_and_in_2_gib_on_cpus(
    gib: float, free: list[int], expected: str
) -> None:
    assert choices.resident_or_streaming(int(gib * 2**30), [each * 2**30 for each in free]) == expected
