"""What is known of a person's images besides their classes gives slices of the evaluation."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import ExifTags, Image

from storage.kinds import EVALUATION
from storage.statistics import Slice
from storage.uri import Root
from tasks.comparing.results import Results
from tasks.evaluate import read_evaluation
from tasks.images import image_facts
from tasks.learning import slices
from tests import documented
from tests.comparing import runs

CLASSES = ("cat", "dog")
CAMERAS = (("Canon", "Canon EOS 5D"), ("Apple", "iPhone 8"), None)
PLACES = ("indoor", "outdoor/night", "")
TEST = 150


def photo(number: int, camera: tuple[str, str] | None, *, kind: str = "JPEG") -> bytes:
    """Noise of one of two sizes and any brightness, with the EXIF of `camera`."""
    generator, sink, exif = np.random.default_rng(number), io.BytesIO(), Image.Exif()
    side = (40, 100)[number % 5 == 0]
    pixels = generator.integers(0, 40, (side, side + 10, 3)) + generator.integers(0, 210)
    if camera:
        exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = camera
    Image.fromarray(pixels.astype(np.uint8)).save(sink, kind, exif=exif)
    return sink.getvalue()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two classes whose camera, subfolder, format and size have nothing to do with each other."""
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(7)
    for split, count in (("train", 10), ("test", TEST)):
        for label, name in enumerate(CLASSES):
            for number in range(count):
                camera, place, kind = CAMERAS[draw.integers(3)], PLACES[draw.integers(3)], ("JPEG", "PNG")[number % 2]
                path = folder / split / name / place / f"{number}.{kind.lower()}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(photo(10_000 * label + 1000 * (split == "test") + number, camera, kind=kind))
    return folder


def evaluated(root: Path, folder: Path, wrong: list[str]) -> dict[str, Any]:
    """The slices of a model that takes these test files for the other class."""
    storage = Root(str(root))
    others = {path: CLASSES[path.split("/")[1] == CLASSES[0]] for path in wrong}
    evaluation, recorded = Results.of(runs.run(storage, folder, wrong=others)).require(EVALUATION)
    found: dict[str, Any] = read_evaluation(evaluation)["slices"]
    worse = recorded.statistics_of(EVALUATION).worse_slices
    assert worse == tuple(slices.worse(Slice(**one) for one in found["slices"]))
    return found


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in (folder / "test").rglob("*.*"))


def camera_of(path: Path) -> str | None:
    with Image.open(path) as image:
        model: str | None = image.getexif().get(ExifTags.Base.Model)
    return model


@pytest.mark.parametrize("planted", [("camera", "Apple iPhone 8"), ("folder", "outdoor/night")])
def test_planted_camera_or_folder_is_named_and_none_of_the_others(
    tmp_path: Path, images: Path, planted: tuple[str, str]
) -> None:
    draw, wrong = np.random.default_rng(1), []
    for path in files(images):
        is_in = camera_of(images / path) == "iPhone 8" if planted[0] == "camera" else "/night/" in path
        wrong += [path] if draw.random() < (0.4 if is_in else 0.1) else []
    found = evaluated(tmp_path, images, wrong)
    assert [(one["fact"], one["value"]) for one in found["slices"] if one["is_worse"]] == [planted]


def test_every_fact_of_the_files_gives_slices_of_all_rows(tmp_path: Path, images: Path) -> None:
    values: dict[str, dict[str, int]] = {}
    for one in evaluated(tmp_path, images, [])["slices"]:
        assert one.keys() == documented.keys("One slice of `slices.json`")
        values.setdefault(one["fact"], {})[one["value"]] = one["rows"]
    assert {fact: sum(counts.values()) for fact, counts in values.items()} == dict.fromkeys(values, 2 * TEST)
    assert set(values["folder"]) == {"indoor", "outdoor/night", "none below the class"}
    assert values["shorter side"] == {"32 to 63 pixels": 240, "64 to 127 pixels": 60}
    assert values["format"] == {"JPEG": TEST, "PNG": TEST}
    assert set(values["camera"]) == {"Canon EOS 5D", "Apple iPhone 8", "not recorded"}
    assert list(values["brightness"].values()) == [60] * 5
    assert sum("darkest fifth (below 0." in value for value in values["brightness"]) == 1


def test_parquet_rows_have_the_facts_of_their_images_and_no_folder(tmp_path: Path) -> None:
    for split, count in (("train", 10), ("test", 60)):
        content = [photo(number, CAMERAS[number % 3]) for number in range(count)]
        labels = [CLASSES[number % 2] for number in range(count)]
        pq.write_table(pa.table({"image": content, "label": labels}), tmp_path / f"{split}.parquet")
    storage = Root(str(tmp_path / "root"))
    prepared = runs.prepare(storage, runs.ingest(storage, tmp_path))
    known = image_facts.describe_rows(prepared, np.arange(60), ["cat"] * 60)
    assert list(known) == ["shorter side", "format", "camera", "brightness"]
    assert known["camera"].tolist() == ["Canon EOS 5D", "Apple iPhone 8", "not recorded"] * 20
    assert set(known["format"]) == {"JPEG"}


def test_facts_are_those_of_the_right_rows_beside_a_part_without_a_readable_image(tmp_path: Path) -> None:
    for split, count in (("train", 60), ("test", 3)):
        for label, name in enumerate(CLASSES):
            for number in range(count):
                path = tmp_path / "photos" / split / name / f"{number}.{('jpeg', 'png')[label]}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(
                    photo(500 * label + number + 1000 * (split == "test"), None, kind=("JPEG", "PNG")[label])
                )
    (tmp_path / "photos" / "test" / "cat" / "0.jpeg").write_bytes(b"broken")  # a part has one or two rows
    root = Root(str(tmp_path / "root"))
    prepared = runs.prepare(root, runs.ingest(root, tmp_path / "photos"))
    facts = image_facts.describe_rows(prepared, np.arange(1, 6), ["cat", "cat", "dog", "dog", "dog"])
    assert facts["format"].tolist() == ["JPEG", "JPEG", "PNG", "PNG", "PNG"]
