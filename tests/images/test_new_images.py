"""New pictures: found in a folder or Parquet, each predicted once, by name, traceable to the checksum of its file."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from storage import files, manifest, tables
from storage.kinds import CheckpointURI, DatasetURI
from storage.uri import URI, Root
from tasks.images import user_images
from tasks.ingest import ingest
from tasks.learning import decode
from tasks.planning import model_requests
from tasks.predict import predict
from tasks.runners.runner import InProcessRunner
from tests import committed
from tests.committed import promote
from tests.image_folder import encoded
from tests.planning.conftest import NAMES


def request(models: Path, dataset: str | Path, **more: Any) -> model_requests.BatchRequest:
    batch: dict[str, Any] = {"storage": str(models), "model": "champion", "data": str(dataset), "split": None}
    return model_requests.resolve_prediction(**batch | {"workers": 0} | more)


def predicted(batch: model_requests.BatchRequest) -> URI:
    """What the flow does, without Prefect."""
    here = InProcessRunner()
    if batch.ingest:
        ingest.fn(batch.ingest.made_from, batch.ingest.data, here)
    stage = batch.predict
    own = stage.embeddings
    return predict.fn(stage.checkpoint, stage.dataset, here, split=stage.split, embeddings=own, root=batch.root)


def rows_of(uri: URI) -> pd.DataFrame:
    return pd.DataFrame(tables.read_split(uri, "new").to_pandas())


CONTENTS = {
    "zwei/b.png": encoded(1, 0),
    "Äpfel/c.jpg": encoded(2, 1, "JPEG"),
    "2026/May/d.webp": encoded(3, 2, "WEBP"),
    "a.gif": encoded(4, 0, "GIF"),
    "cut.jpg": encoded(5, 0, "JPEG")[:400],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures at any depth, two of them in folders that are called like classes, one cut off."""
    for path, content in CONTENTS.items():
        (tmp_path / "New photos" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "New photos" / path).write_bytes(content)
    (tmp_path / "New photos" / "notes.txt").write_text("no image")
    return tmp_path / "New photos"


def test_an_empty_split_means_all_as_a_form_sends_it(models: Path, folder: Path) -> None:
    assert request(models, folder, split="") == request(models, folder)


def test_a_dataset_of_another_image_size_is_refused_before_anything_begins(models: Path) -> None:
    uri = DatasetURI(f"{models}/datasets/raw/others-0123456789ab")
    listed = [manifest.File(path="test", split="test", size=1, rows=1, sha256="")]
    schema = {"columns": {}, "metadata": {"shape": "[8, 8, 3]", "dtype": "uint8", "classes": '["a"]'}}
    committed.commit(uri, "raw", listed, parameters={"data": "others"}, schema=schema)
    with pytest.raises(ValueError, match=r"^--data: its images have shape \(8, 8, 3\), but model .* expects \(28, 28"):
        request(models, uri, model="champion:letters")


def test_each_picture_of_a_folder_is_predicted_once_by_name_and_leads_back_to_its_checksum(
    models: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch = request(models, folder)
    predictions = predicted(batch)
    rows = rows_of(predictions).set_index("file")
    assert list(rows.index) == sorted(CONTENTS) and list(rows["id"]) == list(range(5)) and rows["row"].isna().all()
    labels = rows["label"].dropna().to_dict()
    assert labels == {"zwei/b.png": 2, "Äpfel/c.jpg": 9}
    whole = rows.drop("cut.jpg")
    assert list(whole["class_name"]) == [NAMES[int(answer)] for answer in whole["prediction"]]
    assert rows.loc["cut.jpg", ["prediction", "class_name", "probability"]].isna().all()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "--data: 1 file is left out (not images or Parquet, by their file names): notes.txt" in warnings
    assert dict(rows["sha256"]) == {path: hashlib.sha256(content).hexdigest() for path, content in CONTENTS.items()}
    stored = dict(zip(rows.index, tables.read_split(batch.predict.dataset, "new")["image"].to_pylist(), strict=True))
    resized = {path: decode.decoded(CONTENTS[path], 28, 1).pixels for path in whole.index}
    assert stored == {**resized, "cut.jpg": None}, "as the model was trained"


@pytest.mark.parametrize(
    ("columns", "labels", "is_single"),
    [
        ({"caption": ["zwei", "a", "b"]}, [None, None, None], True),
        ({"label": ["zwei", "unknown", None]}, [2, None, None], False),
        ({"label": [7, 3, -1]}, [7, 3, None], True),
    ],
    ids=["other text", "names", "numbers"],
)
def test_parquet_is_predicted_with_labels_or_without(
    models: Path, tmp_path: Path, columns: dict[str, list[Any]], labels: list[int | None], is_single: bool
) -> None:
    contents = [encoded(0, 0), b"broken", encoded(2, 2)]
    path = tmp_path / "some of them" / "photos.parquet"
    path.parent.mkdir()
    pd.DataFrame({"image": contents} | columns).to_parquet(path)
    rows = rows_of(predicted(request(models, path if is_single else path.parent)))
    assert [None if np.isnan(label) else label for label in rows["label"].astype(float)] == labels
    assert set(rows["file"]) == {"photos.parquet"} and list(rows["row"]) == [0, 1, 2]
    assert list(rows["class_name"].isna()) == [False, True, False]
    assert set(rows["sha256"]) == {hashlib.sha256(path.read_bytes()).hexdigest()}


def test_pictures_on_s3_and_single_ones_are_listed_with_their_checksums(root: Root) -> None:
    photos = root.child("new photos")
    for name in ("a.png", "deep/er/b.jpg"):
        files.put(photos.child(name), encoded(0, 0))
    assert model_requests.are_user_images(DatasetURI(photos))
    listed = user_images.find_new(photos, classes=["er", "x"])
    assert [(file.path, file.label, file.split) for file in listed.files] == [
        ("a.png", None, "new"),
        ("deep/er/b.jpg", 0, "new"),
    ]
    single = user_images.find_new(photos.child("a.png"), classes=[])
    assert model_requests.are_user_images(DatasetURI(photos.child("a.png")))
    assert (single.uri, single.files) == (photos, listed.files[:1])


def test_of_several_champions_the_only_one_of_user_images_is_taken_or_one_has_to_be_named(
    models: Path, folder: Path
) -> None:
    root = Root(str(models))
    target = CheckpointURI(root.child("checkpoints/letters-0123456789ab"))
    promote(root, "signs", target)
    try:
        with pytest.raises(ValueError, match="^--model: there are several .*: champion:letters, champion:signs$"):
            request(models, folder)
        assert request(models, folder, model="champion:signs").predict.checkpoint == target
        kinds = ("datasets/raw", "datasets/prepared", "checkpoints")
        raw, prepared, checkpoint = (root.child(f"{kind}/photos-0a1b2c3d4e5f") for kind in kinds)
        sources = [{"name": "a", "sha256": "", "url": str(models / "photos")}]
        committed.commit(raw, "raw", parameters={"listing": ""}, sources=sources)
        committed.commit(prepared, "prepared", parents={"raw": raw})
        committed.commit(checkpoint, "checkpoint", parents={"prepared": prepared}, model={"classes": NAMES})
        promote(root, "photos", CheckpointURI(checkpoint))
        assert request(models, folder).predict.checkpoint == checkpoint
    finally:
        for name in ("signs", "photos"):
            files.remove(root.child(f"registry/{name}"))


@pytest.mark.parametrize(
    ("dataset", "more", "message"),
    [
        ("New photos", {"split": "test"}, "--split applies to datasets, got 'test' .*New photos/test"),
        ("texts", {}, r"--data: there are neither images .* in .*texts; expected images.*a\.txt"),
        ("texts/a.txt", {}, r"--data: there are neither images .* in .*texts; expected images.*a\.txt"),
        ("New photos", {"storage": "{folder}/data", "model": "{model}"}, "--storage must not be below --data"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_one_line(
    models: Path, folder: Path, dataset: str, more: dict[str, Any], message: str
) -> None:
    (folder.parent / "texts").mkdir()
    (folder.parent / "texts" / "a.txt").touch()
    more = {
        name: value.format(folder=folder, model=models / "checkpoints/letters-0123456789ab")
        for name, value in more.items()
    }
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        request(models, folder.parent / dataset, **more)
    assert "\n" not in str(caught.value)
