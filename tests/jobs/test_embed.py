"""Embeddings of a dataset: each image is computed once, and the bytes do not depend on what was there before."""

from pathlib import Path

import numpy as np
import pytest

from storage import files, manifest, reference
from storage.kinds import EMBEDDINGS, CheckpointURI, DatasetURI, EmbeddingsURI
from storage.uri import Root
from tasks.images import embedding_rows, row_tables
from tasks.jobs.embed.job import PartEmbedder
from tasks.learning import hardware
from tasks.stages import Embed
from tests.jobs import raw
from tests.s3 import Server


def prepare(folder: Path, *, train: int, seed: int) -> DatasetURI:
    root = Root(str(folder))
    spec = raw.to_prepare(root, raw.write(root, shape=(12, 12, 1), train=train, test=30), split_seed=seed)
    raw.run(spec)
    return spec.target


@pytest.fixture(scope="module")
def monday(tmp_path_factory: pytest.TempPathFactory) -> DatasetURI:
    return prepare(tmp_path_factory.mktemp("monday"), train=202, seed=0)


@pytest.fixture(scope="module")
def tuesday(tmp_path_factory: pytest.TempPathFactory) -> DatasetURI:
    """The images of Monday's training rows in another order, and more."""
    return prepare(tmp_path_factory.mktemp("tuesday"), train=230, seed=1)


@pytest.fixture(scope="module")
def model(monday: DatasetURI) -> CheckpointURI:
    spec = raw.to_train(reference.root_of(monday), monday, model="small-cnn", epochs=1)
    raw.run(spec)
    return spec.target


def embed(root: Root, prepared: DatasetURI, model: CheckpointURI) -> EmbeddingsURI:
    stage = Embed(root=root, prepared=prepared, model="small-cnn", start=model)
    raw.run(stage)
    return stage.target


def counts(uri: EmbeddingsURI) -> tuple[int, int]:
    statistics = manifest.load(uri).statistics_of(EMBEDDINGS)
    return statistics.computed, statistics.copied


def test_rows_are_those_of_the_prepared_dataset_in_its_order(
    monday: DatasetURI, model: CheckpointURI, tmp_path: Path
) -> None:
    rows = embedding_rows.read(embed(Root(str(tmp_path)), monday, model))
    digests = row_tables.read_digests(monday)
    assert rows.digests.to_pylist() == digests["digest"].to_pylist()
    assert rows.ids.tolist() == digests["id"].to_pylist()
    assert rows.vectors.shape == (manifest.load(monday).num_rows("train", "validation", "test"), 64)
    assert rows.vectors.dtype == np.float16 and len(np.unique(rows.vectors, axis=0)) > 200


def test_only_new_images_are_computed_and_bytes_are_those_of_an_empty_root(
    monday: DatasetURI, tuesday: DatasetURI, model: CheckpointURI, tmp_path: Path, s3: Server
) -> None:
    root, empty = Root(str(tmp_path / "root")), Root(f"s3://{s3.bucket}/empty")
    first = embed(root, monday, model)
    second, alone = embed(root, tuesday, model), embed(empty, tuesday, model)
    known = set(row_tables.read_digests(monday)["digest"].to_pylist())
    new = sum(digest not in known for digest in row_tables.read_digests(tuesday)["digest"].to_pylist())
    assert counts(first)[1] == counts(alone)[1] == 0 and 0 < new < 100
    assert counts(second) == (new, manifest.load(second).rows - new)
    assert manifest.load(second).content == manifest.load(alone).content


def test_embeddings_of_other_weights_are_not_copied(
    monday: DatasetURI, tuesday: DatasetURI, model: CheckpointURI, tmp_path: Path
) -> None:
    other = raw.to_train(reference.root_of(monday), monday, model="small-cnn", epochs=1, seed=1)
    raw.run(other)
    embed(Root(str(tmp_path)), monday, other.target)
    assert counts(embed(Root(str(tmp_path)), tuesday, model))[1] == 0


def test_interrupted_job_computes_only_what_is_missing(
    monday: DatasetURI, model: CheckpointURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Embed(root=Root(str(tmp_path)), prepared=monday, model="small-cnn", start=model)
    embedded, parts = PartEmbedder.__call__, list[int]()

    def cut(embedder: PartEmbedder, row: dict[str, object]) -> dict[str, object]:
        parts.append(len(parts))
        if len(parts) == 3:
            raise KeyboardInterrupt
        return embedded(embedder, row)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PartEmbedder, "__call__", cut)
        patch.setattr(hardware, "here", lambda *_, **__: "another machine")
        raw.run(stage)
    assert len(files.children(stage.target.child("train"))) == 2
    raw.run(stage)
    assert counts(stage.target)[1] > 0
    used = manifest.load(stage.target).statistics_of(EMBEDDINGS).hardware
    assert len(used) == 2 and "another machine" in used
    alone = embed(Root(str(tmp_path / "alone")), monday, model)
    assert manifest.load(stage.target).content == manifest.load(alone).content


def test_earlier_embeddings_that_cannot_be_read_are_computed_again(
    monday: DatasetURI, tuesday: DatasetURI, model: CheckpointURI, tmp_path: Path
) -> None:
    root = Root(str(tmp_path))
    first = embed(root, monday, model)
    files.remove(first.child(manifest.load(first).files[0].path))
    second = embed(root, tuesday, model)
    assert counts(second)[0] > 100
    files.remove(second)
    files.put(first.child(manifest.NAME), b"{}")
    assert counts(embed(root, tuesday, model))[1] == 0
