"""Ray gives the bytes of work without it: rows, batches, and weights, whatever kills workers and however stored."""

import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.authentication_test_utils import reset_auth_token_state
from ray.data import Dataset
from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as coordinator

from storage import files, manifest
from storage.kinds import DatasetURI
from storage.uri import URI, Root
from tasks.jobs.ingest import job as ingest
from tasks.jobs.local_data import LocalData
from tasks.jobs.predict import job as predict
from tasks.jobs.preprocess import job as preprocess
from tasks.jobs.ray_data import RayData, configure
from tasks.jobs.spec import JobSpec
from tasks.jobs.train import job as train
from tasks.jobs.train import make_loader
from tasks.jobs.train.ray_loader import datasets, windows
from tasks.learning.loop import Loader
from tasks.resources.needs import Limits
from tasks.runners.jobs_api import JOB_ENV
from tasks.stages import Train
from tests import photographs
from tests.faults import injection
from tests.faults.history import History, is_struck, step
from tests.image_folder import write_folder
from tests.jobs import raw
from tests.jobs.raw import reader
from tests.s3 import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_BATCH = 8


@pytest.fixture(scope="module", autouse=True)
def once(tmp_path_factory: pytest.TempPathFactory, s3: Server) -> Iterator[Path]:
    """A file without which a worker is killed in the middle of epoch 3; meanwhile there is a Ray that reaches S3.

    It asks for a token: a process reads it once, so what it read is forgotten.
    """
    folder = tmp_path_factory.mktemp("ray")
    once = folder / "once"
    once.touch()
    strike = injection.fault("step", "epoch 3", once=once, skip=2)
    env = JOB_ENV | injection.environment(folder / "history.jsonl", strike)
    # Without niceness, else workers wait for all else on a busy machine.
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_worker_niceness": "0"}
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("RAY_ADDRESS", raising=False)
            for name, value in env.items():
                patch.setenv(name, value)
            reset_auth_token_state()
            options = {"include_dashboard": False, "logging_level": "WARNING", "object_store_memory": 10**8}
            ray.init(address="local", num_cpus=8, **options)
            # What would else point to this Ray after its end.
            patch.setattr(coordinator, "get_or_create_autoscaling_coordinator", None)
            configure(max_cpus=4)
            yield once
            ray.shutdown()
    finally:
        reset_auth_token_state()  # after the variables are back, since it reads the mode


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, s3: Server) -> DatasetURI:
    """A prepared dataset of encoded images on S3."""
    folder = write_folder(tmp_path_factory.mktemp("photos") / "photos")
    for spec in photographs.to_make(Root(f"s3://{s3.bucket}/on-ray"), URI(str(folder)), "files"):
        raw.run(spec)
    return spec.target


@pytest.mark.parametrize("changes", [{"store": "files"}, {"test_fraction": 0.4, "group": "folder"}])
def test_what_is_ingested_is_the_same_to_the_byte(tmp_path: Path, changes: dict[str, Any]) -> None:
    photos = URI(str(write_folder(tmp_path / "photos") / ("train" if "group" in changes else "")))
    with_ray, without = (raw.to_ingest(Root(f"{tmp_path}/{name}"), photos, **changes) for name in ("ray", "here"))
    ingest.run(JobSpec(stage=with_ray), RayData())
    raw.run(without)
    ours, theirs = (manifest.load(spec.target) for spec in (with_ray, without))
    assert ours.files == theirs.files and ours.rows > 70
    assert ours.statistics.model_copy(update={"seconds": 0}) == theirs.statistics.model_copy(update={"seconds": 0})


def test_what_is_predicted_is_the_same_to_the_byte(prepared: DatasetURI, tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    model = raw.to_train(root, prepared, model="small-cnn", epochs=1)
    raw.run(model)
    with_ray, without = (raw.to_predict(Root(f"{root}/{name}"), model.target, prepared) for name in ("ray", "here"))
    for stage, data in ((with_ray, RayData()), (without, LocalData())):
        predict.run(JobSpec(stage=stage, threads=1), data)
    assert manifest.load(with_ray.target).files == manifest.load(without.target).files


def test_what_tasks_before_the_workers_decode_is_predicted_to_the_same_bytes_and_only_once(
    photos: DatasetURI, tmp_path: Path
) -> None:
    model = photographs.trains(Root(str(tmp_path)), photos, epochs=1)
    raw.run(model)
    with_ray, without = (raw.to_predict(Root(f"{tmp_path}/{name}"), model.target, photos) for name in ("ray", "here"))
    how: dict[str, Any] = {"stage": with_ray, "shape": (16, 16, 3)}

    class AsForGpus(RayData):
        def from_items(self, items: Sequence[object]) -> Dataset:
            return super().from_items(items).map(predict.decode, fn_kwargs=how)

    (part,) = manifest.load(photos).split("test")[:1]
    row = {"item": predict.Part(number=0, file=part)}
    decoded = predict.decode(row, **how)["item"].decoded
    assert decoded[1].shape == (part.rows, 16, 16, 3) and decoded[1].any()
    predict.run(JobSpec(stage=with_ray, threads=1), AsForGpus())
    predict.run(JobSpec(stage=without, threads=2), LocalData())
    assert manifest.load(with_ray.target).files == manifest.load(without.target).files
    assert predict.decode(row, **how) == row, "an interrupted job decodes no part that was predicted before"


def test_what_is_prepared_is_the_same_to_the_byte(prepared: DatasetURI, tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    spec = raw.to_prepare(root, raw.write(root, shape=(12, 12, 1), train=202, test=30))
    preprocess.run(JobSpec(stage=spec), RayData())
    with_ray, without = manifest.load(spec.target), manifest.load(prepared)
    assert with_ray.files == without.files
    splits = {file.split for file in without.files}
    assert splits == {"train", "validation", "test", "quarantine", None}, "all are compared, and the digests too"
    differing = {
        name for name, value in vars(without.statistics).items() if value != getattr(with_ray.statistics, name)
    }
    assert differing <= {"seconds"}


def loader(uri: DatasetURI, *, rank: int, is_on_ray: bool) -> Loader:
    """The loader of one of two ranks, as a training worker makes it."""
    read, committed = None, manifest.load(uri)
    if is_on_ray:
        shards = {split: rows.iterator() for split, rows in datasets(uri, committed, photographs.RECIPE).items()}
        read = partial(windows, world_size=2, get_shard=shards.__getitem__)
    here = reader("ray-data", rank=rank, world_size=2, windows=read)
    return make_loader.make_loader(photographs.RECIPE, uri, committed, here)


def epoch(feed: Loader, number: int) -> list[tuple[list[Any], list[Any]]]:
    """Every batch of training and validation rows."""
    batches = [*feed.train_batches(epoch=number, batch_size=_BATCH), *feed.validation_batches(batch_size=_BATCH)]
    return [(pixels.tolist(), labels.tolist()) for pixels, labels in batches]


@pytest.mark.parametrize("store", ["pixels", "files"])
def test_every_rank_gets_the_batches_that_it_would_read_and_transform_itself(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    uri = request.getfixturevalue("prepared" if store == "pixels" else "photos")
    monkeypatch.setattr(make_loader, "WINDOW_ROWS", 12)
    monkeypatch.setattr(make_loader, "WINDOW_BATCHES", 1)
    for rank in (0, 1):
        ours, alone = (loader(uri, rank=rank, is_on_ray=is_on_ray) for is_on_ray in (True, False))
        assert ours.num_train_rows() == alone.num_train_rows()
        assert epoch(ours, 1 + rank) == epoch(alone, 1 + rank) != epoch(alone, 2 - rank)


def weights_on_ray(stage: Train) -> str:
    """Train, and return the digest of the weights."""
    train.run(JobSpec(stage=stage, limits=Limits(checkpoint_s=3600), threads=stage.workers), RayData())
    return next(file.sha256 for file in manifest.load(stage.target).files if file.path.startswith("weights"))


@pytest.mark.parametrize(("workers", "store"), [(1, "pixels"), (2, "files"), (3, "pixels")])
def test_weights_after_a_kill_between_checkpoints_and_of_a_second_attempt_are_those_of_an_undisturbed_run(
    once: Path, prepared: DatasetURI, tmp_path: Path, workers: int, store: str
) -> None:
    root = Root(str(tmp_path))
    if store == "files":
        for making in photographs.to_make(root, URI(str(write_folder(tmp_path / "photos"))), store):
            raw.run(making)

    def to_train(name: str, loader: str) -> Train:
        stage = raw.to_train(root, prepared, name=name, epochs=3, model="small-cnn", loader=loader)
        if store == "files":
            stage = photographs.trains(root, making.target, name, epochs=3, loader=loader)
        return stage.model_copy(update={"workers": workers})

    expected, killed = weights_on_ray(to_train("streamed", "streaming")), to_train("killed", "ray-data")
    history = History(once.parent / "history.jsonl")
    history.begin()
    once.unlink()
    assert weights_on_ray(killed) == expected and once.exists(), "nobody was killed"
    events = list(history.events())
    again = {event["at"] for event in events[list(map(is_struck, events)).index(True) :] if step(event)}
    assert again >= {"epoch 2", "epoch 3"}, "epoch 2 has no checkpoint"
    for removed in (killed.target, killed.scratch.child("attempt-1/epoch-0003")):
        files.remove(removed)
    assert weights_on_ray(killed) == expected
    assert files.children(killed.scratch) == ["attempt-1", "attempt-2"]


def test_two_workers_train_only_the_new_ones_of_more_epochs_to_the_same_weights(
    prepared: DatasetURI, tmp_path: Path
) -> None:
    def to_train(epochs: int, root: str = "") -> Train:
        how = {"model": "small-cnn", "schedule": "warmup-constant-decay"}
        stage = raw.to_train(Root(str(tmp_path / root)), prepared, epochs=epochs, **how)
        return stage.model_copy(update={"workers": 2})

    weights_on_ray(to_train(2))
    longer = to_train(4)
    assert weights_on_ray(longer) == weights_on_ray(to_train(4, "from-the-start"))
    begun = [files.children(longer.scratch.child(f"attempt-{number}")) for number in (0, 1)]
    assert begun[0] == ["continues.json", "epoch-0001"] and "epoch-0004" in begun[1] and "epoch-0001" not in begun[1]
