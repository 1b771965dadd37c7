"""Near duplicates: planted copies of photos are found, others are not, and a group stays in one split."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from storage import manifest, tables
from storage.kinds import EMBEDDINGS, EmbeddingsURI
from storage.statistics import PAIR_KINDS, NearDuplicates, PairKind
from tasks.embed import embed
from tasks.images import embedding_rows, row_tables
from tasks.ingest import ingest
from tasks.jobs.errors import JobFailed
from tasks.learning import images, recipes
from tasks.learning.recipes import Split
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tasks.preprocess import preprocess
from tasks.report_page import pictures
from tasks.runners.runner import InProcessRunner
from tasks.stages import Embed
from tests import committed
from tests.ingested import prepared

NUM = 20
LEAK, LABELS, WITHIN = PAIR_KINDS


def photos(count: int, *, side: int = 96) -> list[Image.Image]:
    """Blots of color, as different from each other as photos are."""
    blots = np.random.default_rng(3).integers(0, 256, (count, 12, 12, 3), dtype=np.uint8)
    return [Image.fromarray(each).resize((side, side), Image.Resampling.BICUBIC) for each in blots]


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
    recipe = recipes.override(recipes.load("images-probe"), ["image_size=64", *settings])
    return make_plan.make_plan(storage=f"{tmp_path}/root", recipe=recipe, data=data or f"{tmp_path}/photos", workers=0)


def embedded(plan: Plan) -> EmbeddingsURI:
    return embed.fn(Embed(prepared=prepared(plan), model=plan.recipe.model, start=plan.train.start), InProcessRunner())


def found(uri: EmbeddingsURI) -> Mapping[PairKind, NearDuplicates]:
    """The near duplicates among the images."""
    recorded = manifest.load(uri).statistics_of(EMBEDDINGS).near_duplicates
    assert recorded is not None and recorded.keys() == {LEAK, LABELS, WITHIN}
    return recorded


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
    uri = embedded(plan)
    counts = found(uri)
    listed = [pair for kind in PAIR_KINDS for pair in counts[kind].worst]
    pairs = {frozenset((pair.first.place, pair.second.place)) for pair in listed}
    expected = set(map(frozenset, planted))
    assert len(pairs & expected) >= 0.95 * len(expected)
    assert all(each.count == len(each.worst) > 0 for each in counts.values())
    (warning,) = [line for line in caplog.messages if LEAK in line]
    first = listed[0]
    assert f"WARNING: {counts[LEAK].count} pairs of near duplicates {LEAK}" in warning
    assert f"{first.first.place} ~ {first.second.place}" in warning
    shown = pictures.of_data(plan.preprocess.target, manifest.load(uri))["near_duplicates"]
    assert {pair["kind"] for pair in shown} == set(PAIR_KINDS)
    one, other = (image.astype(int) for image in shown[0]["images"])
    assert one.shape == (64, 64, 3) and np.abs(one - other).mean() < 12, "the images of this pair"


def test_group_stays_in_one_split_if_requested_and_the_raw_dataset_decides_it(tmp_path: Path) -> None:
    planted = write(tmp_path / "photos", has_splits=False)
    usual, grouped = planned(tmp_path), planned(tmp_path, "split.group=near_duplicates")
    before, after = (found(embedded(plan)) for plan in (usual, grouped))
    assert before[LEAK].count > 0 == after[LEAK].count
    split, of_before = sides(grouped), sides(usual)
    assert sum(split[first] != split[second] for first, second in planted) <= 0.05 * len(planted)
    others = split.keys() - {path for pair in planted for path in pair}
    assert sum(split[path] == of_before[path] for path in others) >= 0.95 * len(others), "single images stay"
    assert planned(tmp_path, data=grouped.preprocess.raw).recipe.split == grouped.recipe.split
    for plan, own, other in (
        (usual, "none", "folder"),
        (usual, "none", "near-duplicates"),
        (grouped, "near", "folder"),
    ):
        with pytest.raises(ValueError, match=f"--set: group is {own}.* in --data .*, got {other}; give the folder of"):
            planned(tmp_path, f"split.group={other}", data=plan.preprocess.raw)


def test_files_of_one_folder_stay_in_one_split_whatever_comes_to_them(tmp_path: Path) -> None:
    for number, photo in enumerate(photos(160)):
        name = ("cat", "dog")[number % 2]
        folder = tmp_path / "photos" / name / f"{name} on day {number // 8}"
        folder.mkdir(parents=True, exist_ok=True)
        photo.save(folder / f"{number}.png")
    plan = planned(tmp_path, "split.group=folder", "validation_fraction=0.3")
    prepared(plan)
    split = sides(plan)
    of_folder = {str(Path(path).parent): side for path, side in split.items()}
    assert {of_folder[str(Path(path).parent)] for path in split} == {"train", "validation", "test"}
    assert all(split[path] == of_folder[str(Path(path).parent)] for path in split)
    photos(161)[-1].save(tmp_path / "photos/cat/cat on day 3/new.png")
    more = planned(tmp_path, "split.group=folder", "validation_fraction=0.3")
    prepared(more)
    assert sides(more) == split | {"cat/cat on day 3/new.png": of_folder["cat/cat on day 3"]}


@pytest.mark.parametrize(
    ("group", "start", "message"),
    [
        ("folder", "pretrained", "group=folder needs folders below the class folders, such as cat/monday/1.jpg, but "),
        ("near-duplicates", "champion", "weights that stay the same, got start=champion; use start=pretrained, start="),
    ],
)
def test_groups_that_cannot_be_found_are_refused_before_the_work(
    tmp_path: Path, group: str, start: str, message: str
) -> None:
    for name in ("cat/1.png", "dog/2.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True)
        photos(1)[0].save(tmp_path / "photos" / name)
    with pytest.raises(ValueError, match=message):
        planned(tmp_path, f"group={group}", f"start={start}")


def test_near_duplicates_of_too_many_images_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "photos", has_splits=False)
    monkeypatch.setattr(images, "MOST_COMPARED", 8 * NUM - 1)
    planned(tmp_path)
    with pytest.raises(ValueError, match="group=near-duplicates compares at most 50,000 images"):
        planned(tmp_path, "group=near-duplicates")
    uri = EmbeddingsURI(f"{tmp_path}/root/embeddings/photos-0123456789ab")
    committed.commit(uri, "embeddings")
    with pytest.raises(ValueError, match="group=near-duplicates compares at most 50,000 images"):
        embedding_rows.groups_of_files(uri)


def test_tasks_alone_refuse_near_duplicates_without_embeddings(tmp_path: Path) -> None:
    write(tmp_path / "photos", has_splits=False)
    plan, runner = planned(tmp_path), InProcessRunner()
    assert plan.ingest
    raw = ingest.fn(plan.ingest.made_from, plan.recipe.data, runner)
    with pytest.raises(JobFailed, match="group=near-duplicates needs embeddings of the same images without groups"):
        ingest.fn(plan.ingest.made_from, plan.recipe.data, runner, group="near-duplicates")
    with pytest.raises(JobFailed, match="group=near-duplicates needs embeddings of the raw dataset; make them by"):
        preprocess.fn(raw, Split(group="near-duplicates"), runner)
