"""The distance of a prediction: how far the image is from the nearest one that the model was trained on."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from flows.cli.predictions_csv import write_csv
from storage import files, manifest, tables
from storage.kinds import PREDICTIONS, PROBABILITY_PREFIX, DatasetURI, PredictionsURI
from storage.uri import Root
from tasks.images import embedding_rows
from tasks.learning import inference, recipes
from tasks.orchestration.summary import summarize_prediction
from tasks.planning import make_plan
from tasks.planning.model_requests import BatchRequest
from tasks.resources.needs import ANY, Limits
from tasks.stages import Embed, Predict
from tests.image_folder import write_folder
from tests.jobs import raw


@pytest.fixture(scope="module")
def stage(prepared: DatasetURI) -> Predict:
    """Predictions of every prepared row by a model whose images have embeddings."""
    root = Root(str(prepared).partition("/datasets/")[0])
    train = raw.to_train(root, prepared, model="small-cnn", epochs=1)
    raw.run(train)
    assert Predict.of(train.target, prepared) == Predict(checkpoint=train.target, dataset=prepared)
    raw.run(Embed(prepared=prepared, model=train.recipe.model, start=train.target))
    stage = Predict.of(train.target, prepared)
    raw.run(stage)
    return stage


def rows_of(uri: PredictionsURI, split: str | None = None) -> pd.DataFrame:
    return pd.DataFrame(tables.read_split(uri, split).to_pandas())


def test_rows_of_the_model_have_distance_zero_and_others_that_of_their_nearest(stage: Predict) -> None:
    assert stage.embeddings
    rows, known = embedding_rows.read(stage.embeddings, "test"), embedding_rows.known_directions(stage.embeddings)
    expected = 1 - (embedding_rows.directions(rows.vectors) @ known.T).max(1)
    predicted = rows_of(stage.target, "test").set_index("id").loc[rows.ids]
    assert np.abs(predicted["distance"] - expected).max() < 2e-4 and expected.min() > 1e-3
    for split in ("train", "validation"):
        assert rows_of(stage.target, split)["distance"].max() <= 1e-4
    assert predicted["distance"].dtype == np.float32
    assert np.array_equal(predicted["distance"], predicted["distance"].round(inference.DECIMALS))


def test_distances_change_no_bit_of_a_probability(stage: Predict) -> None:
    plain = stage.model_copy(update={"embeddings": None})
    raw.run(plain)
    with_distance, without = rows_of(stage.target), rows_of(plain.target)
    assert list(with_distance.columns.drop("distance")) == list(without.columns)
    pd.testing.assert_frame_equal(with_distance.drop(columns="distance"), without, check_exact=True)
    assert any(name.startswith(PROBABILITY_PREFIX) for name in without.columns)


@pytest.mark.parametrize(("embeddings", "num_reused"), [("same", 2), ("others", 0)])
def test_interrupted_prediction_ends_with_the_same_bytes_and_mixes_no_embeddings(
    stage: Predict, embeddings: str, num_reused: int
) -> None:
    before = manifest.load(stage.target)
    removed = [manifest.NAME, *(file.path for file in before.files[2:])]
    for name in removed:
        files.remove(stage.target.child(name))
    assert stage.embeddings
    recorded = manifest.load(stage.embeddings)
    if embeddings == "others":
        fewer = recorded.model_copy(update={"files": recorded.files[:1]}).signed()
        files.put(stage.embeddings.child(manifest.NAME), fewer.to_json())
    raw.run(stage)
    files.put(stage.embeddings.child(manifest.NAME), recorded.to_json())
    after = manifest.load(stage.target)
    assert after.statistics_of(PREDICTIONS).reused_parts == num_reused
    assert (after.content == before.content) == (embeddings == "same")


def test_of_many_known_images_those_with_the_lowest_digests_count(
    stage: Predict, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stage.embeddings
    monkeypatch.setattr(embedding_rows, "MOST_KNOWN", 7)
    rows = embedding_rows.read(stage.embeddings, "train", "validation")
    lowest = np.argsort(np.array([digest.hex() for digest in rows.digests.to_pylist()]))[:7]
    expected = embedding_rows.directions(rows.vectors[lowest])
    assert np.array_equal(embedding_rows.known_directions(stage.embeddings), expected)


def test_number_of_threads_changes_no_distance(stage: Predict) -> None:
    assert stage.embeddings
    pixels = np.random.default_rng(0).integers(0, 256, (600, 12, 12, 1), dtype=np.uint8)
    known, device = embedding_rows.known_directions(stage.embeddings), torch.device("cpu")
    one, three = (
        inference.Inference(stage.checkpoint, threads=threads, device=device, known=known).predictions(pixels)[:, -1]
        for threads in (1, 3)
    )
    assert len(one) == 600 and one.tobytes() == three.tobytes() and one.std() > 0


@pytest.mark.parametrize(
    ("recipe", "settings", "stages"),
    [
        ("images-probe", {}, ["embed", "train", "predict"]),
        ("images-resnet18", {}, ["train", "embed", "predict"]),
        ("images-resnet18", {"model": "timm/resnet18"}, ["train", "predict"]),
    ],
    ids=["probe", "fine-tuning", "a model whose head nobody has looked at"],
)
def test_plan_of_own_images_embeds_them_once_by_the_models_backbone(
    tmp_path: Path, recipe: str, settings: dict[str, str], stages: list[str]
) -> None:
    folder = write_folder(tmp_path / "photos", train=6, test=3)
    plan = make_plan.make_plan(
        storage=str(tmp_path / "root"), recipe=recipes.override(recipes.load(recipe), settings), data=str(folder)
    )
    names = [stage.kind.stage for stage in plan.stages]
    assert [name for name in names if name in ("embed", "train", "predict")] == stages
    embedded = [stage.target for stage in plan.stages if isinstance(stage, Embed)]
    assert plan.predict.embeddings == (embedded[0] if embedded else None)


@pytest.mark.parametrize("has_distance", [False, True])
@pytest.mark.parametrize("has_confidence", [False, True])
def test_row_keeps_its_class_only_within_both_limits(
    stage: Predict, tmp_path: Path, has_confidence: bool, has_distance: bool
) -> None:
    rows = pd.concat([rows_of(stage.target, split) for split in ("test", "train", "validation")])
    minimum, maximum = float(rows["probability"].median()), float(rows_of(stage.target, "test")["distance"].median())
    limits = {"min_confidence": minimum if has_confidence else None, "max_distance": maximum if has_distance else None}
    is_far = (rows["distance"] > np.float32(maximum)) & has_distance
    is_unsure = (rows["probability"] < np.float32(minimum)) & has_confidence & ~is_far
    assert has_distance == is_far.any() and has_confidence == is_unsure.any()
    least, most = limits.values()
    write_csv(stage.target, tmp_path / "table.csv", min_confidence=least, max_distance=most)
    table = pd.read_csv(tmp_path / "table.csv", keep_default_na=False)
    reasons = np.select([is_far, is_unsure], [f"distance above {maximum:g}", f"probability below {minimum:g}"], "")
    assert table["reason"].tolist() == reasons.tolist() and ((table["class"] == "") == (reasons != "")).all()
    assert np.array_equal(table["distance"].astype(np.float32), rows["distance"])

    request = BatchRequest(
        root=stage.storage,
        ingest=None,
        predict=stage,
        needs=ANY,
        needs_ray=False,
        limits=Limits(),
        no_drift=False,
        **limits,
    )
    summary = summarize_prediction(request, stage.target, [])
    assert summary["above_max_distance"] == is_far.sum() and summary["below_min_confidence"] == is_unsure.sum()
    assert sum(summary["predicted"].values()) == (reasons == "").sum() and summary["drift"] is None
