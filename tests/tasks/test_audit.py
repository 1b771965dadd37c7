"""An audit names the images with a wrong label, by file, and is found when it is done."""

import contextlib
import csv
import dataclasses
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flows.cli import app, preflight
from flows.cli.commands import AuditOptions
from storage import files, manifest
from storage.kinds import EmbeddingsURI
from storage.uri import URI, Root
from tasks.auditing import rows
from tasks.images import embedding_rows
from tests.image_folder import encoded
from tests.runs import options_of
from tests.s3 import Server

CLASSES = ("across", "down", "plain")
SETTINGS = ("image_size=24", "channels=1", "model=small-cnn", "epochs=10", "batch_size=16", "max_shift=1")
SMALL = [word for setting in (*SETTINGS, "precision=fp32") for word in ("--set", setting)]
PLANTED = {"down/across 7.png": "across", "plain/down 11.png": "down", "across/plain 3.png": "plain"}
"""Files whose label is wrong, and the right ones."""


def write_images(folder: Path) -> Path:
    """Forty images of each class, three of them in the folder of another."""
    for label, name in enumerate(CLASSES):
        for number in range(40):
            file = f"{name} {number}.png"
            given = next((place.split("/")[0] for place in PLANTED if place.endswith(f"/{file}")), name)
            (folder / given).mkdir(parents=True, exist_ok=True)
            _picture(100 * label + number, label).save(folder / given / file)
    return folder


def _picture(number: int, label: int) -> Image.Image:
    """Stripes as in `image_folder`, below so much noise that no two pictures are near duplicates."""
    draw, stripes = np.random.default_rng(number), np.indices((24, 24)) // 4 % 2
    pattern = (stripes[0], stripes[1], np.ones((24, 24)))[label]
    return Image.fromarray((pattern * 120 + draw.integers(0, 135, (24, 24))).astype(np.uint8))


def words(folder: Path | URI, root: Path | URI, *more: str) -> list[str]:
    recipe = ("--recipe", "images-resnet18", "--workers", "0", "--json")
    return ["audit", str(folder), "--storage", str(root), *recipe, *SMALL, *more]


def command(folder: Path | URI, root: Path | URI, *more: str) -> dict[str, Any]:
    """What the command prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert app.main(words=words(folder, root, *more)) == 0
    document: dict[str, Any] = json.loads(output.getvalue())
    return document


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    write_images(folder / "images")
    return folder


@pytest.fixture(scope="module")
def audited(place: Path, prefect_server: None) -> dict[str, Any]:
    return command(
        place / "images", place / "root", "--csv", str(place / "table.csv"), "--copy-to", str(place / "copies")
    )


def names(suspects: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {row["file"]: row["likely"] for row in suspects}


def test_wrong_labels_are_named_first_by_file_with_the_right_class(audited: dict[str, Any]) -> None:
    first = audited["suspects"][:2]  # so small a model may miss one
    assert names(first).items() <= PLANTED.items() and any(row["sure"] for row in first)
    assert all(row["given"] == row["file"].split("/")[0] != row["likely"] for row in first)
    own = [row["probability_given"] for row in audited["suspects"]]
    assert own == sorted(own) and len(own) >= 20, "at least 20 are listed"
    assert first[0]["row"] is None


def test_every_image_is_judged_once_by_a_probe_that_did_not_see_it(audited: dict[str, Any]) -> None:
    raw, embedded = manifest.load(URI(audited["uris"]["raw"])), EmbeddingsURI(audited["uris"]["embeddings"])
    judged = embedding_rows.read(embedded)
    assert audited["rows"] == raw.rows == len(set(zip(judged.splits, judged.ids, strict=True))) == 120
    twice = dataclasses.replace(  # the first image again, with another label: a probe that saw its copy would say so
        judged,
        splits=np.append(judged.splits, judged.splits[0]),
        ids=np.append(judged.ids, judged.ids[0]),
        labels=np.append(judged.labels, (judged.labels[0] + 1) % 3),
        digests=pa.chunked_array([*judged.digests.chunks, judged.digests.slice(0, 1).combine_chunks()]),
        vectors=np.concatenate([judged.vectors, judged.vectors[:1]]),
    )
    probabilities, _ = rows.out_of_fold(twice)
    np.testing.assert_allclose(probabilities[0], probabilities[-1])
    alone = dataclasses.replace(
        judged, classes=(*CLASSES, "rare"), labels=np.where(np.arange(120) == 5, 3, judged.labels)
    )
    assert not any(row["sure"] for row in rows.find_suspects(alone).to_pylist() if row["given"] == "rare")


def test_table_copies_and_page_show_the_same_suspects(audited: dict[str, Any], place: Path) -> None:
    with (place / "table.csv").open(newline="") as file:
        assert names(list(csv.DictReader(file))) == names(audited["suspects"])
    copies = sorted((place / "copies").iterdir())
    assert len(copies) == len(audited["suspects"])
    for row, copy in zip(audited["suspects"], copies, strict=True):
        assert copy.read_bytes() == (place / "images" / row["file"]).read_bytes()
        assert f" {row['given']} likely {row['likely']}, " in copy.name
    first = audited["suspects"][0]
    page = files.read(URI(audited["uris"]["audit"]).child("index.html")).decode()
    assert page.count("<img ") == len(copies) and f"label {first['given']}, likely {first['likely']}" in page


def test_same_command_finds_the_audit_even_if_what_it_was_made_from_was_deleted(
    audited: dict[str, Any], place: Path, tmp_path: Path
) -> None:
    shutil.copytree(place / "root", tmp_path / "root")
    for folder in ("checkpoints", "embeddings"):
        shutil.rmtree(tmp_path / "root" / folder)
    again = command(place / "images", tmp_path / "root")
    assert again["suspects"] == audited["suspects"]
    assert [(stage["name"], stage["reused"]) for stage in again["stages"]] == [("audit", True)]


@pytest.mark.slow
def test_rows_of_parquet_files_on_s3_are_named_by_file_and_row(
    prefect_server: None, s3: Server, tmp_path: Path
) -> None:
    root = Root(f"s3://{s3.bucket}/audited")
    labels = {split: [str(number % 2) for number in range(count)] for split, count in (("train", 60), ("test", 12))}
    for split, of_split in labels.items():
        contents = [encoded(1000 * (split == "test") + number, int(label)) for number, label in enumerate(of_split)]
        sink = io.BytesIO()
        pq.write_table(pa.table({"image": contents, "label": of_split}), sink)
        files.put(root.child(f"photos/{split}.parquet"), sink.getvalue())
    document = command(root.child("photos"), root.child("root"), "--copy-to", str(tmp_path / "copies"))
    assert document["rows"] == 72
    first = document["suspects"][0]
    assert all(row["file"] == f"{row['split']}.parquet" for row in document["suspects"])
    assert all(row["given"] == labels[row["split"]][row["row"]] for row in document["suspects"])
    copy, *_ = sorted((tmp_path / "copies").iterdir())
    named = f"00001 {first['given']} likely {first['likely']}, {first['split']} row {first['row']}.png"
    assert copy.name == named and Image.open(copy).size == (24, 24)


def test_data_may_be_the_name_of_a_source(tmp_path: Path) -> None:
    for name, recipe in {"mnist-sample": (), "mnist": ("--recipe", "cifar10-vit", "--set", "device=cpu")}.items():
        options = options_of(AuditOptions, name, *recipe, "--storage", str(tmp_path), "--workers", "0")
        request = preflight.plan_audit(options)
        assert request.plan.preprocess.raw.stem == name == request.plan.recipe.data.source


def test_own_model_without_a_head_is_refused_before_it_is_trained(place: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "from tasks.learning.recipes import Data, Recipe, Training, own\n"
        "def build(image_shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(24 * 24 * 3, num_classes))\n"
        "def mine():\n"
        "    data = Data(source='user-images', image_size=24)\n"
        "    return Recipe(name='mine', data=data, model=own(build), training=Training(epochs=1, batch_size=8))\n"
    )
    words = (str(place / "images"), "--storage", str(tmp_path / "root"), "--recipe", f"{tmp_path / 'own.py'}:mine")
    with pytest.raises(ValueError, match="does not say where its one head is"):
        preflight.checked_audit(options_of(AuditOptions, *words, "--workers", "0"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--set", "start=champion"], "start must not be champion in an audit"),
        (["--copy-to", str(Path(__file__).parent)], "--copy-to: must be an empty folder, or new"),
    ],
)
def test_invalid_request_is_refused_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert app.main(words=words(place / "images", place / "root", *more)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ") and says in line
