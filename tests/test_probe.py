"""A probe's model is an ordinary checkpoint, made in seconds: judged, exported and retrained as any other."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli import app
from storage import manifest, tables
from storage.kinds import CHECKPOINT, EMBEDDINGS, EVALUATION, CheckpointURI, EmbeddingsURI
from storage.uri import URI, Root
from tasks.images import embedding_rows
from tasks.learning import inference, probe
from tasks.learning.modeling import linear_head
from tasks.planning.make_plan import make_again
from tasks.resources.needs import Limits
from tests.image_folder import CLASSES, encoded, picture

SMALL = ("--set", "image_size=32", "--set", "validation_fraction=0.2")


def write(folder: Path, numbers: range) -> Path:
    """Photographs of three classes, as class folders."""
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            picture(100 * label + number, label).save(folder / name / f"{number}.png")
    return folder


def command(*words: str) -> dict[str, Any]:
    """What a command prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert app.main(words=[*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(output.getvalue())
    return document


def run(folder: Path, root: Path, *more: str, recipe: str = "images-probe") -> dict[str, Any]:
    where = ("--data", str(folder), "--storage", str(root), "--workers", "0")
    return command("run", "--recipe", recipe, *where, *SMALL, *more)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probed")


@pytest.fixture(scope="module")
def monday(place: Path, prefect_server: None) -> dict[str, Any]:
    return run(write(place / "photos", range(20)), place / "root")


@pytest.fixture(scope="module")
def tuesday(place: Path, monday: dict[str, Any]) -> dict[str, Any]:
    return run(write(place / "photos", range(20, 24)), place / "root")


def test_first_run_promotes_a_model_that_is_right(monday: dict[str, Any]) -> None:
    evaluated = manifest.load(URI(monday["uris"]["evaluation"])).statistics_of(EVALUATION)
    assert monday["promoted"] and evaluated.balanced_accuracy > 0.8
    assert [stage["name"] for stage in monday["stages"]] == [
        *("download weights", "ingest", "preprocess", "embed", "train", "predict", "evaluate", "promote", "report")
    ]


def test_model_names_the_classes_of_files(monday: dict[str, Any], place: Path) -> None:
    model = inference.load(monday["uris"]["checkpoint"])
    photos = [place / "photos" / name / "3.png" for name in CLASSES]
    assert model([str(photo) for photo in photos]).argmax(1).tolist() == [0, 1, 2]


def test_night_after_computes_only_the_new_images_and_its_model_is_that_of_an_empty_root(
    tuesday: dict[str, Any], place: Path, tmp_path: Path
) -> None:
    checkpoint = URI(tuesday["uris"]["checkpoint"])
    embedded = manifest.load(manifest.load(checkpoint).parent("embeddings", of=checkpoint)).statistics_of(EMBEDDINGS)
    assert (embedded.computed, embedded.copied) == (12, 60)
    alone = run(place / "photos", tmp_path / "root")
    for role in ("checkpoint", "predictions", "evaluation"):
        mine, other = (manifest.load(URI(document["uris"][role])) for document in (tuesday, alone))
        assert mine.files[0].sha256 == other.files[0].sha256 and mine.fingerprint == other.fingerprint


def test_balanced_weights_are_those_of_each_class_whatever_its_name(prefect_server: None, tmp_path: Path) -> None:
    labels, photos = np.array([0] * 30 + [1] * 8), tmp_path / "photos"
    photos.mkdir()
    for split, numbers in (("train", range(38)), ("test", range(100, 138))):
        contents = [encoded(number, int(label)) for number, label in zip(numbers, labels, strict=True)]
        schema = pa.schema({"image": pa.binary(), "label": pa.int64()}, metadata={"classes": '["zebra", "ant"]'})
        pq.write_table(pa.table([contents, labels], schema=schema), photos / f"{split}.parquet")
    uri = CheckpointURI(run(photos, tmp_path / "root", "--set", "class_weights=balanced")["uris"]["checkpoint"])
    rows = embedding_rows.read(EmbeddingsURI(manifest.load(uri).parent("embeddings", of=uri)), "train")
    weights = len(rows.labels) / (2 * np.bincount(rows.labels))
    fitted = probe.fit(rows.vectors, rows.labels, class_weights=weights.tolist())
    head = linear_head(inference.load(uri).classifier)
    np.testing.assert_allclose(head.bias.numpy(), fitted.bias, rtol=1e-4)


@pytest.mark.slow
def test_default_model_averages_a_fine_tuning_and_a_probe(monday: dict[str, Any], place: Path, tmp_path: Path) -> None:
    write(tmp_path / "photos", range(20))
    default, alone = (
        run(tmp_path / "photos", place / "root", "--set", "epochs=1", *more, recipe="images-finetune")
        for more in ((), ("--set", "ensemble=none"))
    )
    checkpoint = CheckpointURI(default["uris"]["checkpoint"])
    again = make_again(checkpoint, root=Root(str(place / "root")), registered_model="x", workers=0, limits=Limits())
    assert again.train.target == checkpoint, "what it records is what was asked for"
    photos = [str(place / "photos" / name / "3.png") for name in CLASSES]
    models = [inference.load(run["uris"]["checkpoint"]) for run in (default, alone, monday)]
    of_both, *each = (model(photos).numpy() for model in models)
    averaged = np.mean(each, 0) ** (1 / models[0].classifier.spec.temperature)
    np.testing.assert_allclose(of_both, averaged / averaged.sum(1, keepdims=True), atol=1e-5)
    rows = [tables.read_split(URI(run["uris"]["predictions"]), "test").to_pandas() for run in (default, monday)]
    np.testing.assert_allclose(rows[0]["distance"], rows[1]["distance"], atol=1e-4, err_msg="by the probe's backbone")
    assert of_both.argmax(1).tolist() == [0, 1, 2]


@pytest.mark.slow
def test_ray_fits_the_same_probe(monday: dict[str, Any], place: Path, tmp_path: Path) -> None:
    write(tmp_path / "photos", range(20))
    on_ray = command(
        *("run", "--recipe", "images-probe", "--data", str(tmp_path / "photos"), "--storage", str(tmp_path / "root")),
        *("--workers", "2", *SMALL),
    )
    weights = [CheckpointURI(document["uris"]["checkpoint"]) for document in (monday, on_ray)]
    models = [inference.load(uri).state_dict() for uri in weights]
    assert weights[0].name == weights[1].name
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])


def test_recorded_history_is_one_epoch(monday: dict[str, Any]) -> None:
    trained = manifest.load(URI(monday["uris"]["checkpoint"])).statistics_of(CHECKPOINT)
    assert len(trained.history) == 1 and not trained.stopped_early and trained.is_reproducible
    assert trained.resolved.class_weights == "none" and trained.temperature > 0
