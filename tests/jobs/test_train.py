"""The driver of a training refuses invalid requests before there is any worker."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.exceptions import OutOfMemoryError, RayTaskError

from storage import commits, files, manifest, tables
from storage.uri import URI, CheckpointURI, DatasetURI, Root
from tasks.jobs import datasource, errors
from tasks.jobs.train import attempts, worker
from tasks.jobs.train import job as train
from tasks.learning import images, recipes
from tasks.learning.checkpoint import WrongResume
from tasks.resources import scaling
from tasks.runners.jobs_api import JOB_ENV
from tasks.stages import TrainSpec


def training(folder: Path, *, rows: int, batch_size: int, workers: int) -> TrainSpec:
    """A training on a committed dataset of `rows` training rows in two parts."""
    prepared = DatasetURI(f"{folder}/prepared-0123456789ab")
    pixels, labels = np.zeros((rows, 2, 2, 1), np.uint8), np.arange(rows) % 2
    table = images.to_table(np.arange(rows), pixels, labels, classes=("cat", "dog"))
    listed = [
        tables.write_part(prepared, part, split="train", index=index)
        for index, part in enumerate([table.slice(0, rows // 3), table.slice(rows // 3)])
    ]
    schema = tables.describe(table.schema)
    commits.commit(prepared, kind="prepared", parents={}, parameters={}, listed=listed, schema=schema)
    recipe = recipes.override(recipes.load("mnist-sample-resnet18"), {"batch_size": batch_size})
    return TrainSpec(
        storage=Root(str(folder)),
        deadline_s=600,
        source=prepared,
        target=CheckpointURI(f"{folder}/checkpoint-0123456789ab"),
        recipe=recipe,
        parameters={},
        workers=workers,
    )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster for four workers, which is never asked for any."""
    monkeypatch.setattr(scaling, "nodes", lambda: [{"CPU": 5}])

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a worker would have been started")

    monkeypatch.setattr(train, "fit", never)
    monkeypatch.setattr(datasource, "dataset", never)


def test_automatic_workers_are_as_many_as_before_the_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "environ", dict(os.environ) | JOB_ENV)
    monkeypatch.setattr(scaling, "nodes", lambda: [{"CPU": 5}])  # one worker, if nobody trained before
    monkeypatch.setattr(train, "fit", lambda *_, scaling_config, **__: asked.append(scaling_config.num_workers))
    monkeypatch.setattr(attempts, "finish", lambda *_, **__: None)
    spec = training(tmp_path, rows=64, batch_size=16, workers=1).model_copy(update={"workers": None})
    for before in (None, 3):
        monkeypatch.setattr(attempts, "workers_before", lambda *_, before=before, **__: before)
        train.run(spec)
    assert asked == [1, 3]
    monkeypatch.setattr(attempts, "workers_before", lambda *_, **__: 40)

    def never(*_: Any, **__: Any) -> None:
        raise ValueError("--workers must be at most 4")

    monkeypatch.setattr(scaling, "await_nodes", never)
    with pytest.raises(WrongResume, match="^the interrupted training used 40 workers, more than this cluster has .--"):
        train.run(spec)


@pytest.mark.usefixtures("machine")
class TestBatchSize:
    @pytest.mark.parametrize(
        ("rows", "batch_size", "workers", "error", "named"),
        [
            (63, 64, 1, ValueError, "batch_size must be at least .* got 64 with 1 worker and 63 rows on one of them"),
            (100, 3, 4, ValueError, "batch_size must be at least .* got 3 with 4 workers and 0 rows on one of them"),
            (64, 64, 1, AssertionError, "a worker would have been started"),
            (9, 4, 4, AssertionError, "a worker would have been started"),
        ],
    )
    def test_fewer_rows_than_the_batch_or_a_smaller_batch_than_the_workers_is_refused_by_name(
        self, tmp_path: Path, rows: int, batch_size: int, workers: int, error: type[Exception], named: str
    ) -> None:
        spec = training(tmp_path, rows=rows, batch_size=batch_size, workers=workers)
        with pytest.raises(error, match=named):
            train.run(spec)
        assert error is AssertionError or not files.walk(spec.scratch)


def test_what_ray_wrapped_is_left_for_the_driver_without_its_traceback(tmp_path: Path) -> None:
    error = manifest.Damaged("train/part is damaged: restore it, then run again")
    attempt = URI(str(tmp_path / "attempt-1"))
    wrapped = RayTaskError("read", "Traceback\n" + "line\n" * 1000, error).as_instanceof_cause()
    assert not worker.is_saved_on_every_rank(wrapped, attempt)
    with pytest.raises(errors.JobRefused, match="^Damaged: train/part is damaged: restore it, then run again$"):
        errors.raise_saved_error(attempt)


def test_an_unexpected_error_keeps_its_whole_traceback_without_secrets(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("is it up? http://me:hidden@host/?key=hidden fails")  # as a line of any frame may end
    failure = errors.job_error(caught.value, folder=URI(str(tmp_path)))
    trace = Path(str(failure).partition("full traceback: ")[2]).read_text()
    assert "as a line of any frame may end" in trace
    assert trace.endswith("RuntimeError: is it up? http://***@host/ fails\n") and "hidden" not in trace


@pytest.mark.parametrize("error", [FileNotFoundError("attempt-1/epoch-0001"), OutOfMemoryError("killed")], ids=repr)
def test_an_error_after_which_a_restart_may_help_is_not_left(error: Exception, tmp_path: Path) -> None:
    attempt = URI(str(tmp_path / "attempt-1"))
    assert not worker.is_saved_on_every_rank(error, attempt) and not errors.has_saved_error(attempt)
