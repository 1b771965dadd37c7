"""Ray Data gives the bytes of work without Ray: what is prepared, and the batches of a training, however stored."""

import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.authentication_test_utils import reset_auth_token_state
from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as coordinator

from storage import manifest
from storage.uri import URI, DatasetURI, Root
from tasks.jobs.ingest import job as ingest
from tasks.jobs.preprocess import job as preprocess
from tasks.jobs.ray_data import RayData, configure
from tasks.jobs.spec import JobSpec
from tasks.jobs.train import make_loader
from tasks.jobs.train.ray_loader import datasets, windows
from tasks.learning.loop import Loader
from tests import photographs
from tests.image_folder import write_folder
from tests.jobs import raw
from tests.jobs.raw import reader
from tests.s3 import Server

pytestmark = pytest.mark.slow

_BATCH = 8


@pytest.fixture(scope="module", autouse=True)
def local_ray(s3: Server) -> Iterator[None]:
    """A Ray of the tests' own that reaches S3, with a token: a process reads it once, so what it read is forgotten."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("RAY_ADDRESS", raising=False)
            patch.setenv("RAY_AUTH_MODE", "token")
            patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
            patch.setenv("RAY_worker_niceness", "0")  # else they wait for all else on a busy machine
            reset_auth_token_state()
            options = {"include_dashboard": False, "logging_level": "WARNING", "object_store_memory": 10**8}
            ray.init(address="local", num_cpus=2, **options)
            # What would else point to this Ray after its end.
            patch.setattr(coordinator, "get_or_create_autoscaling_coordinator", None)
            configure(max_cpus=2)
            yield
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


@pytest.mark.parametrize("changes", [{"store": "files"}, {"test_fraction": 0.4, "group": "near-duplicates"}])
def test_what_is_ingested_is_the_same_to_the_byte(tmp_path: Path, changes: dict[str, Any]) -> None:
    photos = URI(str(write_folder(tmp_path / "photos") / ("train" if "group" in changes else "")))
    with_ray, without = (raw.to_ingest(Root(f"{tmp_path}/{name}"), photos, **changes) for name in ("ray", "here"))
    ingest.run(JobSpec(stage=with_ray), RayData())
    raw.run(without)
    ours, theirs = (manifest.load(spec.target) for spec in (with_ray, without))
    assert ours.files == theirs.files and ours.rows > 70
    assert ours.statistics.model_copy(update={"seconds": 0}) == theirs.statistics.model_copy(update={"seconds": 0})


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
