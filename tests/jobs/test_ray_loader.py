"""Ray Train feeds workers by Ray Data: weights do not depend on kills, attempts, or on who reads the rows."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray._private.authentication_test_utils import reset_auth_token_state

from storage import files, manifest
from storage.uri import URI, DatasetURI, Root
from tasks.jobs.ray_data import RayData, configure
from tasks.jobs.spec import JobSpec
from tasks.jobs.train import job as train
from tasks.runners.jobs_api import JOB_ENV
from tasks.stages import Train
from tests import photographs
from tests.faults import injection
from tests.image_folder import write_folder
from tests.jobs import raw

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file without which a worker is killed in the middle of epoch 2; Ray runs meanwhile."""
    folder = tmp_path_factory.mktemp("ray")
    once = folder / "once"
    once.touch()
    strike = injection.fault("step", "epoch 2", once=once, skip=2)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("RAY_ADDRESS", raising=False)
            settings = JOB_ENV | injection.environment(folder / "history.jsonl", strike)
            for name, value in (settings | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}).items():
                patch.setenv(name, value)
            reset_auth_token_state()
            options = {"include_dashboard": False, "logging_level": "WARNING", "object_store_memory": 10**8}
            ray.init(address="local", num_cpus=8, **options)
            configure(max_cpus=4)
            yield once
            ray.shutdown()
    finally:
        reset_auth_token_state()


def weights(stage: Train) -> str:
    """Train, and return the digest of the weights."""
    train.run(JobSpec(stage=stage, threads=stage.workers), RayData())
    return next(file.sha256 for file in manifest.load(stage.target).files if file.path.startswith("weights"))


@pytest.mark.parametrize(("workers", "store"), [(1, "pixels"), (2, "files"), (3, "pixels")])
def test_weights_after_a_kill_in_an_epoch_and_of_a_second_attempt_are_those_of_an_undisturbed_run_that_streams(
    once: Path, prepared: DatasetURI, tmp_path: Path, workers: int, store: str
) -> None:
    root = Root(str(tmp_path))
    if store == "files":
        for making in photographs.to_make(root, URI(str(write_folder(tmp_path / "photos"))), store):
            raw.run(making)

    def to_train(name: str, loader: str) -> Train:
        stage = raw.to_train(root, prepared, name=name, epochs=2, model="small-cnn", loader=loader)
        if store == "files":
            stage = photographs.trains(root, making.target, name, loader=loader)
        return stage.model_copy(update={"workers": workers})

    expected, killed = weights(to_train("streamed", "streaming")), to_train("killed", "ray-data")
    once.unlink()
    assert weights(killed) == expected and once.exists(), "nobody was killed"
    for removed in (killed.target, killed.scratch.child("attempt-1/epoch-0002")):
        files.remove(removed)
    assert weights(killed) == expected
    assert files.children(killed.scratch) == ["attempt-1", "attempt-2"]
