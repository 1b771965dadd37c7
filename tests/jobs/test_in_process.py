"""Stages without Ray: the same bytes, checkpoints from which a run resumes, and the error messages of jobs."""

import shutil
from pathlib import Path

import pytest

from storage import files, manifest
from storage.kinds import CHECKPOINT, PREPARED, DatasetURI
from storage.statistics import SplitRule
from storage.uri import Root
from tasks.jobs.errors import JobFailed, JobRefused
from tasks.jobs.train import attempts
from tasks.learning import training_state, user_code
from tests.jobs import raw
from tests.jobs.raw import run
from tests.learning.training import same

pytestmark = pytest.mark.usefixtures("more_models")


_DRAWING = {
    "model": "drawing",
    "policy": "trivial",
    "erasing": 0.5,
    "mixup": 0.2,
    "cutmix": 1.0,
    "class_weights": "balanced",
}
"""A model that draws random numbers, with all augmentations that do."""


def test_training_that_was_cut_off_goes_on_to_the_same_weights(
    prepared: DatasetURI, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = Root(str(tmp_path))
    whole, cut = (raw.to_train(root, prepared, name=name, epochs=4, **_DRAWING) for name in ("whole", "cut"))
    run(whole)
    raw.train(cut, cut=4)
    left = {name for name in files.children(cut.scratch.child("attempt-1")) if name.startswith("epoch-")}
    assert "epoch-0003" in left and len(left) <= 3, "the newest checkpoint, the one before and the best are kept"
    with caplog.at_level("INFO"):
        run(cut)
    assert "epoch 3/4: done before, resuming from its checkpoint; best so far: epoch " in caplog.text
    models = (training_state.load_model(stage.target)[0].state_dict() for stage in (cut, whole))
    assert same(*models)
    recorded, expected = (manifest.load(stage.target).statistics_of(CHECKPOINT) for stage in (cut, whole))
    assert recorded.history == expected.history, "measured times play no part in a comparison"
    assert not files.exists(cut.scratch.child("attempt-1/_attempt.json")), "what is not needed any more is removed"
    split = manifest.load(prepared).statistics_of(PREPARED).split
    assert recorded.split == split, "what a warm start is compared with"
    assert split == SplitRule(split_seed=0, validation_fraction=0.25, group="none", store="pixels")


def test_a_bug_in_a_users_model_is_shown_with_its_line_and_its_traceback_is_kept(
    prepared: DatasetURI, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n\n\nclass Net(nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x)\n\n\n"
        "def network(*, image_shape, num_classes):\n    return Net(3, 2)\n"
    )
    model = user_code.reference(user_code.load(file).network)
    spec = raw.to_train(Root(str(tmp_path)), prepared, model=model)
    with pytest.raises(JobRefused, match="^RuntimeError: mat1 and mat2 shapes cannot be multiplied") as caught:
        run(spec)
    _, place, source, kept = str(caught.value).splitlines()
    assert (place, source) == (f"  {file}, line 6, in forward", "    return super().forward(x)")
    assert "torch/nn/modules/linear.py" in Path(kept.removeprefix("  full traceback: ")).read_text()


def test_an_attempt_that_trained_on_other_bytes_is_refused_with_the_next_step(
    prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(str(tmp_path))
    spec = raw.to_train(root, DatasetURI(root.child(f"datasets/prepared/{prepared.name}")), epochs=2)
    shutil.copytree(prepared, spec.prepared)
    with monkeypatch.context() as patch:
        patch.setattr(attempts, "finish", lambda *_, **__: 1 / 0)
        with pytest.raises(JobFailed, match="ZeroDivisionError"):
            run(spec)
    recorded = manifest.load(spec.prepared)
    files.remove(spec.prepared.child(manifest.NAME))
    others = recorded.model_copy(update={"files": recorded.files[1:], "digest": None})  # a part is missing: other bytes
    files.put(spec.prepared.child(manifest.NAME), others.signed().to_json())
    with pytest.raises(JobRefused, match="^WrongResume: dataset: .* in the interrupted run, .* now; .* --refresh$"):
        run(spec)
