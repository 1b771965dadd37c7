"""Recipe fields of a training's steps and checkpoints, in whole jobs: which epochs are kept, and where graphs run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, nll_loss

from storage import files, manifest, tables
from storage.kinds import CHECKPOINT, DatasetURI
from storage.uri import Root
from tasks.jobs.train import choices
from tasks.learning import images, inference, training_state
from tests.jobs import raw
from tests.jobs.raw import run
from tests.learning.training import same

pytestmark = pytest.mark.usefixtures("more_models")


def test_checkpoint_of_every_second_epoch_is_resumed_from_and_the_best_of_them_is_committed(
    prepared: DatasetURI, tmp_path: Path
) -> None:
    root = Root(str(tmp_path))
    whole, cut = (raw.to_train(root, prepared, name=name, epochs=5, checkpoint_every=2) for name in ("whole", "cut"))
    run(whole)
    raw.train(cut, cut=4)
    left = [name for name in files.children(cut.scratch.child("attempt-1")) if name.startswith("epoch-")]
    assert left == ["epoch-0002"]
    assert raw.train(cut) == [3, 4, 5]
    (model, meta), (expected, _) = (training_state.load_model(spec.target) for spec in (cut, whole))
    assert same(model.state_dict(), expected.state_dict())
    kept = [row for row in meta.history if row.epoch in (2, 4, 5)]
    assert len(meta.history) == 5
    assert meta.best_epoch == meta.epoch == min(kept, key=lambda row: row.validation_loss).epoch


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
        ({"step": "graph", "device": "cuda"}, 2, "^step must be eager with 2 workers and loader=resident, got 'graph'"),
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
