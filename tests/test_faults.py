"""Parts of a run that die in the middle of it while the run itself lives."""

import os
import signal
from pathlib import Path

import pytest

from tests.runs import Run, await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_TWO_WORKERS = ["--source", "sample", "--set", "precision=fp32", "--set", "epochs=2", "--workers", "2", "--json"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run of two workers that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return _weights(Run(*_TWO_WORKERS, "--storage", str(folder / "root"), folder=folder).result())


def test_a_killed_training_worker_is_replaced_and_the_weights_are_as_if_it_had_lived(
    undisturbed: str, tmp_path: Path
) -> None:
    run = Run(*_TWO_WORKERS, "--storage", str(tmp_path / "root"), folder=tmp_path)
    await_that(lambda: run.says("epoch 2/2"))
    workers = _training_workers(run)
    os.kill(workers[0], signal.SIGKILL)
    assert _weights(run.result()) == undisturbed
    assert len(workers) == 2


def test_a_training_worker_that_freezes_is_noticed_and_the_weights_are_as_if_it_had_not(
    undisturbed: str, tmp_path: Path
) -> None:
    run = Run(*_TWO_WORKERS, "--stall", "1", "--storage", str(tmp_path / "root"), folder=tmp_path)
    await_that(lambda: run.says("epoch 2/2"))
    os.kill(_training_workers(run)[0], signal.SIGSTOP)
    assert _weights(run.result()) == undisturbed
    assert run.says("no progress for 60 s")
    assert not run.processes()


def test_a_run_whose_local_ray_dies_starts_another_and_goes_on(tmp_path: Path) -> None:
    arguments = ["--source", "sample", "--set", "epochs=2", "--json", "--storage", str(tmp_path / "root")]
    run = Run(*arguments, folder=tmp_path)
    await_that(lambda: run.says("epoch 2/2"))
    head = next(pid for pid, command in run.processes().items() if "gcs_server" in command)
    os.kill(head, signal.SIGKILL)
    assert run.result()["promoted"]
    assert run.says("starting another")


def test_a_training_that_diverges_ends_at_once_and_is_not_tried_again(tmp_path: Path) -> None:
    settings = ["--set", "learning_rate=1e30", "--set", "epochs=1"]
    run = Run("--source", "sample", *settings, "--storage", str(tmp_path / "root"), folder=tmp_path)
    assert run.wait() == 1
    assert "lower learning_rate" in run.log.read_text().splitlines()[-1]
    assert run.log.read_text().count("train started") == 1
    assert not list((tmp_path / "root" / "checkpoints").glob("*"))


def test_of_two_runs_at_once_one_works_and_the_other_waits_for_its_results(tmp_path: Path) -> None:
    arguments = ["--source", "sample", "--set", "epochs=1", "--json", "--storage", str(tmp_path / "root")]
    runs = [Run(*arguments, folder=tmp_path / name) for name in ("a", "b")]
    results = [run.result() for run in runs]
    assert results[0]["uris"] == results[1]["uris"]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert sum(run.says("epoch 1/1, steps") for run in runs) == 1, "the model was trained twice, or not at all"


def _training_workers(run: Run) -> list[int]:
    return [pid for pid, command in run.processes().items() if command.startswith("ray::RayTrainWorker")]


def _weights(result: dict[str, dict[str, str]]) -> str:
    return next(Path(result["uris"]["checkpoint"]).glob("weights-*")).name
