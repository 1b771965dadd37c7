"""Checkpoints: only whole ones are used, and only for the run they belong to."""

import copy
import dataclasses
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from storage import manifest
from storage.kinds import CHECKPOINT, CheckpointURI
from storage.manifest import Parent
from storage.statistics import EpochMetrics
from storage.uri import URI
from tasks.jobs.train import attempts
from tasks.learning import training_state
from tasks.learning.checkpoint import FILES, META, TRAINING, WEIGHTS, WrongResume
from tasks.learning.loop import Trainer
from tasks.learning.sources import Split
from tests import committed
from tests.committed import RESOLVED
from tests.learning import training
from tests.learning.training import same, weights

pytestmark = pytest.mark.usefixtures("more_models")

PREPARED = "0123456789ab"
FIELDS: dict[str, Any] = {"parameters": {"epochs": 3, "seed": 0}, "resolved": RESOLVED}
EPOCHS = {1: "attempt-1/epoch-0001", 2: "attempt-1/epoch-0002", 3: "attempt-2/epoch-0003"}
"""Where each epoch lies: the first attempt was cut off after two, the second made the last."""
VALIDATION_LOSSES = [0.5, 0.4, 0.6]
"""As if the second epoch had been the best one."""


class Run:
    """A training of the small model: its scratch folder, and the weights after each epoch."""

    def __init__(self, digits: dict[str, Split], scratch: Path) -> None:
        self.scratch = scratch
        self.history: list[EpochMetrics] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        trainer = new_trainer(digits)
        for epoch, loss in enumerate(VALIDATION_LOSSES, start=1):
            self.history.append(dataclasses.replace(trainer.run_epoch(epoch), validation_loss=loss))
            self.weights.append(weights(trainer))
            write = training_state.take(trainer, self.history, prepared=PREPARED, fields=FIELDS)
            write(URI(str(scratch / EPOCHS[epoch])))


def new_trainer(digits: dict[str, Split], **changes: Any) -> Trainer:
    """The run before its first step."""
    recipe = training.recipe(model="small", epochs=3, batch_size=32, **changes)
    return training.trainer(recipe, training.rows(digits["train"], 0, 128), training.rows(digits["test"], 0, 32))


@pytest.fixture(scope="module")
def run(digits: dict[str, Split], module_path: Path, more_models: None) -> Run:
    return Run(digits, module_path / "scratch")


@pytest.fixture
def scratch(run: Run, tmp_path: Path) -> URI:
    """A copy of the scratch folder for one test to damage."""
    return URI(str(shutil.copytree(run.scratch, tmp_path / "scratch")))


@pytest.fixture
def target(tmp_path: Path) -> CheckpointURI:
    """A place where nothing is committed yet."""
    return CheckpointURI(str(tmp_path / "checkpoints/small-0123456789ab"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def raise_a_digit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"validation_loss": 0.6', b'"validation_loss": 0.7'))


def newest(scratch: URI) -> URI | None:
    """The checkpoint that a training resumes from; its local copy is whole."""
    with tempfile.TemporaryDirectory() as folder:
        fetched = attempts.fetch_newest(scratch, Path(folder))
        if fetched is None:
            return None
        assert all(Path(folder, name).read_bytes() == Path(fetched[0], name).read_bytes() for name in FILES[:2])
        return fetched[0]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_snapshot_has_the_bytes_of_the_state_although_the_training_goes_on(
    digits: dict[str, Split], tmp_path: Path, layout: torch.memory_format
) -> None:
    trainer = new_trainer(digits)
    trainer.model.backbone.to(memory_format=layout)
    history = [trainer.run_epoch(1)]
    model = safetensors.torch.save({name: tensor.contiguous() for name, tensor in trainer.model.state_dict().items()})
    optimizer = copy.deepcopy(trainer.optimizer.state_dict()["state"])
    write = training_state.take(trainer, history, prepared=PREPARED, fields=FIELDS)
    trainer.run_epoch(2)
    write(URI(str(tmp_path)))
    assert (tmp_path / WEIGHTS).read_bytes() == model
    restored = new_trainer(digits)
    training_state.restore(tmp_path, restored, prepared=PREPARED, fields=FIELDS)
    torch.testing.assert_close(restored.optimizer.state_dict()["state"], optimizer, rtol=0, atol=0)


class TestNewest:
    @pytest.mark.parametrize(
        ("name", "damage"),
        [(WEIGHTS, flip), (TRAINING, truncate), (WEIGHTS, Path.unlink), (META, Path.unlink), (META, raise_a_digit)],
        ids=["flipped", "truncated", "missing", "without description", "changed digit"],
    )
    def test_damaged_checkpoint_is_passed_over_for_the_one_before(
        self, scratch: URI, name: str, damage: Callable[[Path], None]
    ) -> None:
        assert newest(scratch) == scratch.child(EPOCHS[3]), "of any attempt"
        damage(Path(scratch, EPOCHS[3], name))
        assert newest(scratch) == scratch.child(EPOCHS[2])

    def test_checkpoint_whose_best_epoch_is_damaged_is_passed_over_unless_another_attempt_has_it(
        self, scratch: URI
    ) -> None:
        whole = shutil.copytree(Path(scratch, EPOCHS[2]), Path(scratch.parent, "whole"))
        flip(Path(scratch, EPOCHS[2], WEIGHTS))
        assert newest(scratch) == scratch.child(EPOCHS[1])
        shutil.copytree(whole, Path(scratch, "attempt-3/epoch-0002"))
        assert newest(scratch) == scratch.child(EPOCHS[3])

    def test_tenth_attempt_is_later_than_the_ninth(self, scratch: URI) -> None:
        for number in (9, 10):
            shutil.copytree(Path(scratch, EPOCHS[3]), Path(scratch, f"attempt-{number}/epoch-0003"))
        assert newest(scratch) == scratch.child("attempt-10/epoch-0003")

    def test_without_a_complete_checkpoint_there_is_no_newest(self, scratch: URI, tmp_path: Path) -> None:
        for epoch in EPOCHS.values():
            truncate(Path(scratch, epoch, WEIGHTS))
        assert newest(scratch) is newest(URI(str(tmp_path / "never"))) is None


class TestRestore:
    @pytest.mark.parametrize(
        ("prepared", "changed", "message"),
        [
            ("ba9876543210", {}, f"dataset: {PREPARED} in the interrupted run, ba9876543210 now; use"),
            (PREPARED, {"parameters": {"epochs": 4}}, "parameters: {.*} in the interrupted run, {'epochs': 4} now"),
            (PREPARED, {"resolved": RESOLVED.model_copy(update={"workers": 2})}, "workers: 1 in .*, 2 now; use"),
        ],
    )
    def test_checkpoint_of_another_run_is_refused_by_name(
        self, scratch: URI, digits: dict[str, Split], prepared: str, changed: dict[str, Any], message: str
    ) -> None:
        trainer = new_trainer(digits)
        before = weights(trainer)
        with pytest.raises(WrongResume, match=f"^{message}.*--refresh"):
            training_state.restore(Path(scratch, EPOCHS[2]), trainer, prepared=prepared, fields=FIELDS | changed)
        assert same(weights(trainer), before)


class TestCommit:
    def test_committed_model_gives_what_the_best_epoch_gave_and_tells_of_all_epochs_and_where_it_comes_from(
        self, run: Run, scratch: URI, target: CheckpointURI, digits: dict[str, Split]
    ) -> None:
        made = commit(scratch, target)
        model, meta = training_state.load_model(target)
        trained = new_trainer(digits).model.eval()
        trained.load_state_dict(run.weights[1])
        pixels, _ = training.rows(digits["test"], 0, 64)
        with torch.inference_mode():
            assert torch.equal(model(pixels), trained(pixels))
        assert (meta.epoch, meta.model.classes) == (2, tuple("0123456789"))
        recorded = made.statistics_of(CHECKPOINT)
        assert meta.history == recorded.history == tuple(run.history) and recorded.best_epoch == 2
        assert made.parents == {"prepared": parent()}
        assert {"parameters": made.parameters, "resolved": recorded.resolved} == FIELDS

    @pytest.mark.parametrize(
        ("damaged", "message"),
        [
            (f"{EPOCHS[2]}/{WEIGHTS}", "epoch 2, the best, is damaged; run again"),
            (f"{EPOCHS[3]}/{META}", "after epoch 2 are damaged; run again"),
        ],
    )
    def test_training_without_its_best_epoch_or_its_history_is_not_committed(
        self, scratch: URI, target: CheckpointURI, damaged: str, message: str
    ) -> None:
        flip(Path(scratch, damaged))
        with pytest.raises(RuntimeError, match=message):
            commit(scratch, target)
        assert manifest.find(target) is None

    def test_something_else_than_a_committed_checkpoint_is_refused(self, target: CheckpointURI) -> None:
        with pytest.raises(FileNotFoundError, match=f"{target} is not committed"):
            training_state.load_model(target)
        committed.commit(target, "raw")
        with pytest.raises(ValueError, match=f"{target} is not a checkpoint: its kind is 'raw'"):
            training_state.load_model(target)


def commit(scratch: URI, target: CheckpointURI) -> manifest.Manifest:
    return attempts.commit(scratch, target, parents={"prepared": parent()}, **committed.ENDED)


def parent() -> Parent:
    """The dataset that was trained on."""
    return Parent(uri=f"/root/datasets/prepared/small-{PREPARED}", digest="0" * 64, content="1" * 64)
