"""A prediction reads and writes parts beside computing: order, bytes, errors, deadlines and resuming are unchanged."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from storage import files, manifest, tables
from storage.kinds import PREDICTIONS, CheckpointURI, DatasetURI
from storage.uri import Root
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.errors import JobFailed, JobRefused
from tasks.jobs.spec import JobSpec
from tasks.learning import images
from tasks.learning.inference import Inference
from tasks.resources.needs import Limits
from tasks.runners.runner import InProcessRunner
from tasks.stages import Predict
from tests.jobs import raw
from tests.runs import await_that


@pytest.fixture(scope="module")
def model(prepared: DatasetURI) -> CheckpointURI:
    """A model that has seen the rows once."""
    stage = raw.to_train(Root(str(prepared).partition("/datasets/")[0]), prepared, model="small-cnn", epochs=1)
    raw.run(stage)
    return stage.target


@pytest.fixture
def stage(prepared: DatasetURI, model: CheckpointURI, tmp_path: Path) -> Predict:
    """Predictions of a dataset of twelve parts, in a root of their own."""
    return raw.to_predict(Root(str(tmp_path)), model, prepared)


@pytest.fixture
def fourth(prepared: DatasetURI) -> Iterator[Path]:
    """The file of the dataset's fourth part, which is put back afterwards."""
    path = Path(prepared.child(manifest.load(prepared).split("train")[3].path))
    content = path.read_bytes()
    yield path
    path.unlink()
    path.write_bytes(content)


def test_each_part_has_the_rows_of_its_dataset_part_in_order_with_what_the_model_says_of_them(stage: Predict) -> None:
    raw.run(stage)
    dataset, predicted = manifest.load(stage.dataset), manifest.load(stage.target)
    sources = sorted((file for file in dataset.files if file.split in ("train", "validation", "test")), key=_place)
    assert [_place(file) for file in predicted.files] == [_place(file) for file in sources] and len(sources) == 12
    alone = Inference(stage.checkpoint, threads=1, device=torch.device("cpu"))
    for source, part in zip(sources, predicted.files, strict=True):
        rows, answers = tables.read_part(stage.dataset, source), tables.read_part(stage.target, part)
        assert answers["id"].equals(rows["id"]) and answers["label"].equals(rows["label"])
        expected = alone.probabilities(images.to_arrays(rows, (12, 12, 1))[0])
        columns = [answers[f"probability_{name}"].to_numpy() for name in raw.CLASSES]
        np.testing.assert_allclose(np.stack(columns, axis=1), expected, atol=1e-6)


def test_damaged_part_ends_the_job_by_name_and_the_parts_before_it_are_reused_with_the_same_bytes(
    stage: Predict, fourth: Path, tmp_path: Path
) -> None:
    undisturbed = stage.model_copy(update={"root": Root(str(tmp_path / "undisturbed"))})
    raw.run(undisturbed)
    content = fourth.read_bytes()
    fourth.write_bytes(content[:-1] + b"?")
    with pytest.raises(JobRefused, match=f"Damaged: .*{fourth.name}"):
        raw.run(stage)
    await_that(lambda: len(files.children(stage.target.child("train"))) >= 3)
    assert [name[:10] for name in files.children(stage.target.child("train"))] == [
        "part-00000",
        "part-00001",
        "part-00002",
    ]
    fourth.write_bytes(content)
    raw.run(stage)
    resumed = manifest.load(stage.target)
    assert resumed.statistics_of(PREDICTIONS).reused_parts == 3
    assert resumed.files == manifest.load(undisturbed.target).files


def test_part_that_cannot_be_written_ends_the_job_with_its_error(stage: Predict) -> None:
    files.put(stage.target.child("train"), b"a file where the folder should be")
    with pytest.raises(JobFailed, match="NotADirectoryError: .*train"):
        raw.run(stage)
    assert not manifest.is_committed(stage.target)


def test_deadline_ends_a_prediction_while_a_part_does_not_arrive(stage: Predict, fourth: Path) -> None:
    fourth.unlink()
    os.mkfifo(fourth)
    try:
        with pytest.raises(DeadlineExceeded, match="not done within 2 s"):
            InProcessRunner().run(JobSpec(stage=stage, limits=Limits(stage_s=2)))
    finally:
        os.close(os.open(fourth, os.O_WRONLY))  # whoever still reads it finds its end
    assert not manifest.is_committed(stage.target)


def _place(file: manifest.File) -> tuple[str | None, str]:
    return file.split, file.path.rpartition("/")[2][:10]
