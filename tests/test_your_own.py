"""Every recipe, and a user's own images, from data to report: the whole flow, on one Ray or without."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prefect.artifacts import Artifact

from flows.cli import console
from storage import manifest, registry, tables, terminal
from storage.kinds import CHECKPOINT, PREPARED
from storage.uri import URI, Root
from tasks.learning import images
from tasks.learning.sources import cifar10
from tasks.report_page import plots
from tests.image_folder import BROKEN, CLASSES, encoded, write_folder
from tests.learning.test_cifar10 import write_archive

Flow = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def flow(prefect_server: None) -> Flow:
    """The flow in this process, with one Prefect server for all tests."""
    from flows import pipeline

    return pipeline.images


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return Root(str(tmp_path_factory.mktemp("own") / "root"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("pictures") / "Obst & Gemüse")


SMALL: dict[str, Any] = {
    "model": "small-cnn", "epochs": 8, "image_size": 24, "batch_size": 8, "max_quarantined": 0.1, "max_shift": 1,
    "precision": "fp32",
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(flow: Flow, root: Root, pictures: Path) -> dict[str, Any]:
    return flow(recipe="images-resnet18", storage=str(root), data=str(pictures), settings=SMALL, workers=0)


def test_a_folder_of_photographs_is_learned_and_its_broken_files_are_listed(
    trained: dict[str, Any], root: Root
) -> None:
    prepared = manifest.load(URI(trained["uris"]["prepared"]))
    assert prepared.statistics_of(PREPARED).quarantined == {"image could not be read": 3}
    listed = tables.read_split(URI(trained["uris"]["prepared"]), "quarantine").to_pandas()
    assert sorted(listed["path"]) == sorted(BROKEN) and (listed["problem"] != "").all()
    assert trained["source"]["data"] == "obst-gemuse"
    assert registry.champion(root, trained["registered_model"]) == trained["uris"]["checkpoint"]
    assert manifest.load(URI(trained["uris"]["checkpoint"])).statistics_of(CHECKPOINT).model.classes == CLASSES


def test_every_good_test_image_is_predicted_and_leads_back_to_its_file(trained: dict[str, Any], pictures: Path) -> None:
    rows = tables.read_split(URI(trained["uris"]["predictions"]), "test").to_pandas()
    raw = URI(trained["uris"]["raw"])
    sources = next(file for file in manifest.load(raw).files if file.path.startswith("sources-"))
    files = tables.read_part(raw, sources).to_pandas()
    path_of = files[files["split"] == "test"].set_index("first_id")["path"]
    good = [path for path in path_of if path not in BROKEN]
    assert sorted(path_of[rows["id"]]) == sorted(good)
    assert all(path_of[row.id].split("/")[1] == CLASSES[row.label] for row in rows.itertuples())
    assert list(rows["file"]) == list(path_of[rows["id"]]) and rows["row"].isna().all()
    assert list(rows["class_name"]) == [CLASSES[answer] for answer in rows["prediction"]]
    assert trained["metrics"]["test_accuracy"] >= 0.5


def test_new_pictures_are_predicted_by_the_flow_with_a_champion(
    flow: Flow, trained: dict[str, Any], root: Root, pictures: Path, tmp_path: Path
) -> None:
    from flows.predict import predict

    model = f"champion:{trained['registered_model']}"
    here: dict[str, Any] = {"storage": str(root), "workers": 0, "model": model}
    made = predict(data=str(pictures), **here)
    assert made["uris"]["checkpoint"] == trained["uris"]["checkpoint"] and made["rows"] == 3 * 24 + 2 * 6 + len(BROKEN)
    assert [stage["name"] for stage in made["stages"]] == ["ingest", "predict"]
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "any.png").write_bytes(encoded(5, 1))
    rows = tables.read_split(URI(predict(data=str(tmp_path / "new"), **here)["uris"]["predictions"]), "new")
    assert rows.to_pydict()["file"] == ["any.png"] and rows.to_pydict()["class_name"][0] in CLASSES
    again = predict(data=str(tmp_path / "new"), **here)
    assert all(stage["reused"] for stage in again["stages"])


def test_report_and_summary_state_the_problems_of_the_data_and_the_interval_of_the_accuracy(
    trained: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(trained["uris"]["report"]) / "index.html").read_text().replace("<wbr>", "")
    problems = trained["data_problems"]
    excluded = "3 of 87 rows excluded (image could not be read: 3)"
    assert excluded in problems and "classes without test rows: 卵" in problems
    for said in ("on obst-gemuse", ">rote Äpfel</th><td>22</td>", *BROKEN, *problems):
        assert said in page
    summary: Any = Artifact.get(f"{trained['registered_model']}-summary")
    assert summary is not None and trained["reason"] in summary.data.replace("\\", ""), "the key is of its own source"
    terminal.show_lines(console.lines(trained))
    shown = capsys.readouterr().out
    assert all(f"note           {problem}\n" in shown for problem in problems)
    assert re.search(r"test accuracy  \d\.\d{4} on 12 rows \(95% interval 0\.\d+ to [01]", shown)
    rows = tables.read_split(URI(trained["uris"]["predictions"]), "test").to_pandas()
    wrong = rows.loc[rows["label"] != rows["prediction"], "file"]
    assert all(f'<p class="muted">{file}</p>' in page for file in wrong), "each mistake is called by its file"


def test_the_same_folder_again_is_found_and_a_new_file_makes_a_training_that_goes_on_from_the_champion(
    flow: Flow, trained: dict[str, Any], root: Root, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = flow(recipe="images-resnet18", storage=str(root), data=str(pictures), settings=SMALL, workers=0)
    assert again["uris"] == trained["uris"] and all(stage["reused"] for stage in again["stages"])
    (pictures / "test" / "卵").mkdir()
    content, place = encoded(5, 2), pictures / "test" / "卵" / "first.png"
    place.write_bytes(content)
    settings = SMALL | {"epochs": 1, "start": "champion", "tolerance": 1.0}
    more = flow(recipe="images-resnet18", storage=str(root), data=str(pictures), settings=settings, workers=0)
    assert not any(stage["reused"] for stage in more["stages"])
    assert more["metrics"]["num_rows"] == trained["metrics"]["num_rows"] + 1
    made = manifest.load(URI(more["uris"]["checkpoint"]))
    assert made.parent("initial", of=URI(more["uris"]["checkpoint"])) == trained["uris"]["checkpoint"]
    assert more["champion"] == more["uris"]["checkpoint"]
    found = registry.latest(root, more["registered_model"])
    assert found and found.difference and more["difference"] == found.difference.model_dump()
    page = (Path(more["uris"]["report"]) / "index.html").read_text()
    assert f"Compared with the champion: {found.difference}." in page
    assert "Initial weights" in page
    again = flow(recipe="images-resnet18", storage=str(root), data=str(pictures), settings=settings, workers=0)
    assert again["uris"] == more["uris"], "its own model is in charge now, and still it is the same request"
    predicted = tables.read_split(URI(more["uris"]["predictions"]), "test").to_pandas().set_index("file")
    assert predicted.loc["test/卵/first.png", "sha256"] == hashlib.sha256(content).hexdigest()


def test_photographs_that_stay_files_are_learned_shown_and_predicted(flow: Flow, root: Root, tmp_path: Path) -> None:
    from flows.predict import predict

    folder = write_folder(tmp_path / "kept as files")
    settings = SMALL | {"store": "files", "crop_scale": 0.8, "max_shift": 0, "epochs": 1}
    result = flow(recipe="images-resnet18", storage=str(root), data=str(folder), settings=settings, workers=0)
    test = tables.read_split(URI(result["uris"]["prepared"]), "test")
    assert pa.types.is_binary(test["image"].type), "files of any size"
    decoded = dict(zip(test["id"].to_pylist(), images.to_arrays(test, (24, 24, 3))[0], strict=True))
    page = (Path(result["uris"]["report"]) / "index.html").read_text()
    shown = re.findall(r'<img src="([^"]+)" .*alt="Test row (\d+):', page)
    assert shown and all(source == plots.png(decoded[int(id_)]) for source, id_ in shown)
    assert page.count('alt="Training image') > 6

    here: dict[str, Any] = {"storage": str(root), "workers": 0, "model": result["uris"]["checkpoint"]}
    again = predict(data=result["uris"]["raw"], split="test", **here)
    rows, told = (
        tables.read_split(URI(one["uris"]["predictions"]), "test").to_pandas().set_index("id")
        for one in (again, result)
    )
    assert rows.loc[told.index, "prediction"].tolist() == told["prediction"].tolist()
    assert rows.loc[told.index, "probability"].tolist() == pytest.approx(told["probability"].tolist())


@pytest.mark.slow
def test_the_cifar_recipe_that_one_would_deploy_learns(
    flow: Flow, root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10, "SOURCE", write_archive(tmp_path, rows=48, plain=True))
    settings = {"epochs": 4, "batch_size": 16, "max_shift": 0, "minimum": 0.5, "device": "cpu"}
    result = flow(recipe="cifar10-resnet18", storage=str(root), mirror=[str(tmp_path)], settings=settings, workers=0)
    assert result["promoted"], result["reason"]
