"""Near duplicates: planted copies of photos are found, others are not, and a group stays in one split."""

import io
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from storage import files, manifest, tables
from storage.kinds import PREPARED
from storage.manifest import Manifest
from tasks.images import row_tables
from tasks.jobs.preprocess import near_duplicates
from tasks.learning import recipes
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tasks.preprocess import preprocess
from tasks.report_page import pictures
from tasks.runners.runner import InProcessRunner
from tests.ingested import ingested

NUM = 40
PHOTO = Path(matplotlib.get_data_path(), "sample_data", "grace_hopper.jpg")
LEAK, LABELS, WITHIN = near_duplicates.KINDS


def photos(count: int, *, side: int = 96) -> list[Image.Image]:
    """Crops of a photo at random places, each turned and mirrored in another way."""
    draw, whole = np.random.default_rng(3), Image.open(PHOTO).convert("RGB")
    crops = []
    for number in range(count):
        left, upper = (int(draw.integers(0, edge - side)) for edge in whole.size)
        crop = whole.crop((left, upper, left + side, upper + side)).rotate(90 * (number % 4))
        crops.append(Image.merge("RGB", [crop.split()[channel] for channel in draw.permutation(3)]))
    return crops


def copy_of(image: Image.Image, number: int) -> tuple[str, bytes]:
    """The image in another size and file format, with the suffix of its name."""
    width, height = (round(side * (0.5, 0.8, 1.3)[number % 3]) for side in image.size)
    sink, kind = io.BytesIO(), ("JPEG", "WEBP")[number % 2]
    image.resize((width, height), Image.Resampling.LANCZOS).save(sink, kind, quality=50 + number % 40)
    return kind.lower(), sink.getvalue()


def write(folder: Path, *, has_splits: bool) -> list[tuple[str, str]]:
    """Photos of two classes, a third of them with a copy; return the files of each pair."""
    planted = []
    for number, photo in enumerate(photos(6 * NUM)):
        split, label = ("train", "test")[number % 5 == 0] if has_splits else "", ("cat", "dog")[number % 2]
        place = folder / split / label
        place.mkdir(parents=True, exist_ok=True)
        photo.save(place / f"{number:03}.png")
        if number % 3:
            continue
        other = {"train": "test", "test": "train"}.get(split, "") if number % 9 == 0 else split
        copied = folder / other / (label if number % 9 < 6 else {"cat": "dog", "dog": "cat"}[label])
        copied.mkdir(parents=True, exist_ok=True)
        suffix, content = copy_of(photo, number)
        (copied / f"copy {number:03}.{suffix}").write_bytes(content)
        pair = [place / f"{number:03}.png", copied / f"copy {number:03}.{suffix}"]
        first, second = (str(path.relative_to(folder)) for path in pair)
        planted.append((first, second))
    return planted


def planned(tmp_path: Path, *settings: str, data: str = "") -> Plan:
    recipe = recipes.override(recipes.load("images-resnet18"), ["image_size=32", *settings])
    return make_plan.make_plan(storage=f"{tmp_path}/root", recipe=recipe, data=data or f"{tmp_path}/photos", workers=0)


def prepared(plan: Plan) -> Manifest:
    return manifest.load(preprocess.fn(ingested(plan), plan.recipe.split, InProcessRunner()))


def sides(plan: Plan) -> dict[str, str]:
    """The split of each file in the prepared dataset."""
    origins = row_tables.table_of(plan.preprocess.target)
    assert origins is not None
    placed: dict[str, str] = {}
    for split in ("train", "validation", "test"):
        ids = tables.read_split(plan.preprocess.target, split, columns=["id"])["id"].to_pylist()
        placed |= dict.fromkeys(row_tables.files_of(origins, split, ids)[0], split)
    return placed


def test_planted_copies_are_found_listed_by_kind_and_shown_and_hardly_any_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    planted = write(tmp_path / "photos", has_splits=True)
    plan = planned(tmp_path)
    recorded = prepared(plan)
    counts = recorded.statistics_of(PREPARED).near_duplicates
    assert counts is not None
    listed = [pair for kind in near_duplicates.KINDS for pair in counts[kind].worst]
    pairs = {frozenset((pair.first.place, pair.second.place)) for pair in listed}
    expected = set(map(frozenset, planted))
    assert len(pairs & expected) >= 0.95 * len(expected) and len(pairs - expected) <= NUM * 6 / 1000
    assert counts.keys() == {LEAK, LABELS, WITHIN}
    assert all(each.count == len(each.worst) > 0 for each in counts.values())
    (warning,) = [line for line in caplog.messages if LEAK in line]
    first = listed[0]
    assert f"WARNING: {counts[LEAK].count} pairs of near duplicates {LEAK}" in warning
    assert f"{first.first.place} ~ {first.second.place}" in warning
    shown = pictures.of_data(plan.preprocess.target)["near_duplicates"]
    assert [pair["kind"] for pair in shown] == [kind for kind in near_duplicates.KINDS for _ in range(8)]
    one, other = (image.astype(int) for image in shown[0]["images"])
    assert one.shape == (32, 32, 3) and np.abs(one - other).mean() < 12, "the images of this pair"


def test_group_stays_in_one_split_if_requested_and_the_default_has_the_names_of_before(tmp_path: Path) -> None:
    planted = write(tmp_path / "photos", has_splits=False)
    usual, grouped = planned(tmp_path), planned(tmp_path, "split.group=near_duplicates")
    assert usual.preprocess.raw != grouped.preprocess.raw
    before, after = (prepared(plan).statistics_of(PREPARED).near_duplicates for plan in (usual, grouped))
    assert before and after and before[LEAK].count > 0 == after[LEAK].count
    split, of_before = sides(grouped), sides(usual)
    assert sum(split[first] != split[second] for first, second in planted) <= 0.05 * len(planted)
    others = split.keys() - {path for pair in planted for path in pair}
    assert sum(split[path] == of_before[path] for path in others) >= len(others) - 4, "single images stay"


def test_raw_dataset_without_thumbnails_cannot_be_grouped_and_is_refused_in_time(tmp_path: Path) -> None:
    write(tmp_path / "photos", has_splits=False)
    data = planned(tmp_path).preprocess.raw
    recorded = manifest.load(ingested(planned(tmp_path)))
    kept = tuple(file for file in recorded.files if not file.path.startswith("thumbnails/"))
    files.put(data.child(manifest.NAME), recorded.model_copy(update={"files": kept}).signed().to_json())
    assert planned(tmp_path, data=data)
    with pytest.raises(ValueError, match="group=near-duplicates needs the thumbnails of user images, which --data "):
        planned(tmp_path, "group=near-duplicates", data=data)
