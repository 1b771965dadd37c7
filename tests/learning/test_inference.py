"""The model elsewhere: what the README shows does what it says."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from storage import registry
from storage.registry import Decision
from storage.uri import URI, CheckpointURI, Root
from tasks.learning import checkpoint, inference, state
from tasks.learning.datasets import Split
from tests.learning import training
from tests.runs import CHECKOUT

ABOUT: dict[str, Any] = {"parameters": {}, "resolved": {"precision": "fp32"}}


@pytest.fixture(scope="module")
def root(digits: dict[str, Split], tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A storage root whose champion of `mnist` has seen some digits."""
    root = Root(str(tmp_path_factory.mktemp("elsewhere") / "data"))
    trainer = training.trainer(
        training.recipe(epochs=1), training.rows(digits["train"], 0, 128), training.rows(digits["test"], 0, 32)
    )
    history = [trainer.run_epoch(1)]
    scratch, target = root.child("runs/x"), CheckpointURI(root.child("checkpoints/mnist-resnet18-0123456789ab"))
    snapshot = state.take(trainer, history, prepared="0", about=ABOUT)
    checkpoint.write(scratch.child("attempt-1/epoch-0001"), snapshot)
    prepared = URI("/nowhere/datasets/prepared/x-0123456789ab")
    checkpoint.commit(scratch, target, prepared=prepared, statistics={})
    decision = Decision(
        number=1, champion=target, challenger=target, evaluation="", promoted=True, reason="", gate={}, metrics={}
    )
    registry.append(root, "mnist", decision)
    return root


def test_what_the_readme_shows_loads_exports_and_tells_the_history(
    root: Root, digits: dict[str, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    section = (
        (CHECKOUT / "README.md").read_text().partition("\n## Using the model elsewhere\n")[2].partition("\n## ")[0]
    )
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(Path(root).parent)
    images = torch.from_numpy(digits["test"].images[:5].copy())
    here: dict[str, Any] = {"images": images}
    for block in blocks:
        exec(block, here)
    probabilities = here["probabilities"]
    assert len(blocks) == 3 and len([line for line in blocks[0].splitlines() if line]) == 3
    assert (probabilities.shape, probabilities.dtype) == ((5, len(here["model"].classes)), torch.float32)
    assert torch.allclose(probabilities.sum(1), torch.ones(5))
    own = inference.Inference(CheckpointURI(root.child("checkpoints/mnist-resnet18-0123456789ab")), threads=1)
    assert torch.allclose(torch.from_numpy(own.probabilities(images.numpy())), probabilities, atol=1e-5)
    exported = torch.export.load("model.pt2").module()
    other = torch.from_numpy(digits["test"].images[5:12].copy())
    assert torch.allclose(exported(other), here["model"](other), atol=1e-5), "another number of images"
    assert list(here["history"]["epoch"]) == [1] and "validation_accuracy" in here["history"]


def test_a_model_that_is_not_there_is_refused_by_name(root: Root, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no champion of 'cifar10'"):
        inference.load("champion:cifar10", storage=str(root))
    with pytest.raises(FileNotFoundError, match="is not committed"):
        inference.load(str(tmp_path / "nothing"))
