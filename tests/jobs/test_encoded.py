"""Encoded images: the same rows as decoded ones, and random draws that depend on no task or loader."""

import io
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from storage import manifest, tables
from storage.kinds import CHECKPOINT, PREDICTIONS, PREPARED, RAW, DatasetURI
from storage.uri import URI, Root
from tasks.learning import images, recipes
from tasks.learning.transforms import Transform
from tasks.stages import Ingest, Preprocess
from tests import photographs
from tests.image_folder import BROKEN, encoded, write_folder
from tests.jobs import raw
from tests.jobs.raw import run

_SHAPE = (16, 16, 3)
_RECIPE = photographs.RECIPE
_PLAIN = recipes.override(_RECIPE, {"crop_scale": 1.0, "flip": "none", "color_jitter": 0.0})
_AUGMENTATIONS: dict[str, Any] = {"flip": "horizontal", "crop_scale": 0.2, "color_jitter": 0.5}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, of which three are broken."""
    return write_folder(tmp_path_factory.mktemp("encoded") / "photos")


@pytest.fixture(scope="module")
def stages(photos: Path) -> dict[str, tuple[Ingest, Preprocess]]:
    """What makes their raw and their prepared dataset, and has made them, in both ways to store images."""
    root = Root(str(photos.parent / "root"))
    made = {store: photographs.to_make(root, URI(str(photos)), store) for store in ("pixels", "files")}
    for stage in itertools.chain(*made.values()):
        run(stage)
    return made


@pytest.fixture(scope="module")
def prepared(stages: dict[str, tuple[Ingest, Preprocess]]) -> DatasetURI:
    """The prepared dataset of encoded images."""
    return stages["files"][1].target


def saved(pixels: np.ndarray) -> bytes:
    """A PNG."""
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG")
    return sink.getvalue()


def pixels_of(uri: DatasetURI, *splits: str) -> dict[tuple[str, int], bytes]:
    """Pixels by split and id."""
    found: dict[tuple[str, int], bytes] = {}
    for split in splits:
        table = tables.read_split(uri, split)
        table = table.filter(table["image"].is_valid())
        pixels, _ = images.to_arrays(table, _SHAPE)
        found |= {(split, id_): one.tobytes() for id_, one in zip(table["id"].to_pylist(), pixels, strict=True)}
    return found


def test_raw_rows_are_the_files_and_decode_to_the_pixels_of_decoded_ones(
    photos: Path, stages: dict[str, tuple[Ingest, Preprocess]]
) -> None:
    uris = [ingest.target for ingest, _ in stages.values()]
    old, new = map(manifest.load, uris)
    assert pixels_of(uris[0], "train", "test") == pixels_of(uris[1], "train", "test")
    assert new.statistics_of(RAW).unreadable == old.statistics_of(RAW).unreadable
    assert new.statistics_of(RAW).class_counts == old.statistics_of(RAW).class_counts
    contents = {path.read_bytes() for path in (photos / "train").rglob("*.*") if path.is_file()}
    stored = [one for one in tables.read_split(uris[1], "train")["image"].to_pylist() if one is not None]
    assert stored and set(stored) <= contents
    assert (images.store_of(old.columns["metadata"]), images.store_of(new.columns["metadata"])) == (
        "pixels",
        "files",
    )


def test_prepared_statistics_are_those_of_the_decoded_pixels(
    stages: dict[str, tuple[Ingest, Preprocess]], prepared: DatasetURI
) -> None:
    old, new = (manifest.load(preprocess.target).statistics_of(PREPARED) for _, preprocess in stages.values())
    pixels, _ = images.to_arrays(tables.read_split(prepared, "train"), _SHAPE)
    assert np.allclose(new.mean, pixels.reshape(-1, 3).mean(0)) and np.allclose(new.std, pixels.reshape(-1, 3).std(0))
    assert new.quarantined == old.quarantined and sum(new.quarantined.values()) == len(BROKEN)
    assert new.quarantined_files == old.quarantined_files


def test_a_rows_draws_depend_on_seed_epoch_and_id_alone(prepared: DatasetURI) -> None:
    table = tables.read_split(prepared, "train")
    transform = Transform(_RECIPE, _SHAPE)
    whole = transform(table, epoch=1).drop_columns("label").to_pylist()
    alone = [row for start in range(len(table)) for row in transform(table.slice(start, 1), epoch=1).to_pylist()]
    assert [row["image"] for row in whole] == [row["image"] for row in alone]
    for other in (transform(table, epoch=2), Transform(recipes.override(_RECIPE, {"seed": 6}), _SHAPE)(table, epoch=1)):
        assert sum(a["image"] == b for a, b in zip(whole, other["image"].to_pylist(), strict=True)) < len(whole) // 4


def test_without_augmentation_training_rows_are_those_of_validation_and_prediction(prepared: DatasetURI) -> None:
    table = tables.read_split(prepared, "train")
    pixels, _ = images.to_arrays(table, _SHAPE)
    plain = Transform(_PLAIN, _SHAPE)(table, epoch=1)
    validated = Transform(_RECIPE, _SHAPE)(table, epoch=None)
    assert [one.tobytes() for one in pixels] == plain["image"].to_pylist() == validated["image"].to_pylist()


@pytest.mark.parametrize("threads", [2, 5])
def test_pixels_and_their_order_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (100, 160, 120, 3), dtype=np.uint8)
    contents = [None if number % 7 == 3 else saved(one) for number, one in enumerate(noise)]
    table = pa.table({"id": list(range(100)), "image": contents, "label": list(range(100))})
    whole, _ = images.to_arrays(table, _SHAPE)
    assert (images.to_arrays(table, _SHAPE, threads=threads)[0] == whole).all() and whole.any(axis=(1, 2, 3)).sum() > 80
    table, augmented = table.filter(table["image"].is_valid()), partial(Transform(_RECIPE, _SHAPE), epoch=1)
    pieces = list(images.in_pieces(augmented, [table[:50], table[50:], table[:0]], threads=threads))
    assert len(pieces) > 3 and pa.concat_tables(pieces).equals(augmented(table))


@pytest.mark.parametrize("channels", [1, 3])
def test_each_augmentation_changes_pixels_and_flip_mirrors_them(channels: int) -> None:
    shape = (16, 16, channels)
    table = pa.table({"id": list(range(20)), "image": [encoded(n, 0) for n in range(20)], "label": [0] * 20})
    plain = images.to_arrays(table, shape)[0]
    changed = [recipes.override(_PLAIN, {name: value}) for name, value in _AUGMENTATIONS.items()]
    flipped, *others = [images.to_arrays(Transform(one, shape)(table, epoch=1), shape)[0] for one in changed]
    mirrored = [np.array_equal(a, b[:, ::-1]) for a, b in zip(plain, flipped, strict=True)]
    same = [np.array_equal(a, b) for a, b in zip(plain, flipped, strict=True)]
    assert any(mirrored) and any(same) and all(np.logical_or(mirrored, same))
    assert all((changed != plain).any() for changed in others)


def test_training_that_was_cut_off_ends_with_the_same_bytes_and_its_model_predicts_every_row_with_an_image(
    stages: dict[str, tuple[Ingest, Preprocess]], prepared: DatasetURI, tmp_path: Path
) -> None:
    whole, cut = (photographs.trains(Root(str(tmp_path)), prepared, name) for name in ("whole", "cut"))
    run(whole)
    raw.train(cut, cut=2)
    run(cut)
    weights = [
        [file.sha256 for file in manifest.load(one.target).files if "weights" in file.path] for one in (whole, cut)
    ]
    assert weights[0] == weights[1] and weights[0]
    assert manifest.load(cut.target).statistics_of(CHECKPOINT).resolved.loader == "ray-data"
    source = stages["files"][0].target
    spec = raw.to_predict(Root(str(tmp_path)), cut.target, source)
    run(spec)
    rows = tables.read_split(spec.target, "train")
    is_missing = tables.read_split(source, "train")["image"].is_null()
    assert rows["id"] == tables.read_split(source, "train")["id"]
    assert rows["prediction"].is_null() == rows["probability_pears"].is_null() == is_missing
    assert manifest.load(spec.target).statistics_of(PREDICTIONS).unpredicted == len(BROKEN)


def test_a_loader_that_decodes_nothing_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="loader must be auto, streaming or ray-data with store=files, got"):
        recipes.override(_RECIPE, {"loader": "resident"})
