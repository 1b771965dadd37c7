"""Whether more photos help, by evidence: a curve, its interval, and the training images most like each mistake."""

import dataclasses
import html
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tasks.learning import recipes
from tasks.planning import make_plan
from tasks.report import Run, gather, with_pictures
from tasks.report_page import ReportData, more_photos, render
from tasks.report_page.more_photos import MorePhotos
from tests.finished import Finished
from tests.image_folder import CLASSES, picture
from tests.ingested import run
from tests.report_page.browser import VIEWS, Browser
from tests.report_page.test_browser import ask


def rows(num_rows: int, *, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of six classes, which overlap by `spread`, and their labels."""
    random, labels = np.random.default_rng(0), np.arange(num_rows) % 6
    return random.normal(size=(6, 100))[labels] + spread * random.normal(size=(num_rows, 100)), labels


def measure(vectors: np.ndarray, labels: np.ndarray) -> MorePhotos:
    return more_photos.measure(vectors, labels, groups=np.arange(len(labels)))


def test_curve_rises_where_more_photos_help_and_not_where_labels_are_noise() -> None:
    vectors, labels = rows(240, spread=3)
    rising = measure(vectors, labels)
    quarter, half, whole = rising.curve
    assert quarter + 0.05 < half < whole - 0.03 and rising.verdict == "more photos help"
    for seed in range(3):
        noise = measure(vectors, np.random.default_rng(seed).permutation(labels))
        assert noise.gain[0] < 0 < noise.gain[1] and noise.verdict != rising.verdict
        assert all(abs(accuracy - 1 / 6) < 0.05 for accuracy in noise.curve)


def test_verdict_is_what_the_interval_allows() -> None:
    assert measure(*rows(240, spread=0.5)).verdict == "more photos of the same kind help little"
    for num_rows in (30, 6):
        assert measure(*rows(num_rows, spread=3)).verdict == "these photos are too few to tell whether more help"


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a probe; a test photograph has the label of another class, and a brighter copy of it is in training."""
    folder = tmp_path_factory.mktemp("probed")
    for split, numbers in (("train", range(20)), ("test", range(20, 26))):
        for label, name in enumerate(CLASSES):
            (folder / "photos" / split / name).mkdir(parents=True)
            for number in numbers:
                picture(100 * label + number, label).save(folder / "photos" / split / name / f"{number}.png")
    mislabeled = picture(999, 1)
    mislabeled.save(folder / "photos/test" / CLASSES[0] / "mislabeled.png")
    copy = np.minimum(np.asarray(mislabeled), 225) + 30
    Image.fromarray(copy).save(folder / "photos/train" / CLASSES[1] / "copy.png")
    recipe = recipes.override(recipes.load("images-probe"), {"image_size": 32, "validation_fraction": 0.2})
    plan = make_plan.make_plan(storage=str(folder / "root"), recipe=recipe, data=str(folder / "photos"), workers=0)
    decision = run(plan)
    return Run(plan.evaluate.target, decision, plan.recipe, plan.registered_model, command=plan.command)


@pytest.fixture(scope="module")
def data(probed: Run) -> ReportData:
    return with_pictures(probed, gather(probed))


@pytest.fixture(scope="module")
def page(probed: Run) -> Path:
    return Path(probed.stage.target, "index.html")


def section(page: str) -> str:
    """The text of the section."""
    (part,) = re.findall('(?s)<section aria-labelledby="more-photos">.*?</section>', page)
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", part)).split())


def test_page_has_both_accuracies_with_their_intervals_and_is_made_again_to_the_byte(
    data: ReportData, page: Path
) -> None:
    assert render(data) == page.read_text()
    text, share, interval = section(page.read_text()), r"[01]\.\d{4}", r"0\.\d{4} to [01]\.\d{4}"
    assert re.search(rf"Test rows alone 19 {share} {interval} {share}", text)
    assert re.search(rf"All, cross-validated 80 {share} {interval} {share}", text)
    curve = (
        r"a quarter of the photos the accuracy is [01]\.\d\d, with half of them [01]\.\d\d, with all [01]\.\d\d: .*help"
    )
    assert re.search(curve, text)


def test_look_alike_of_a_mistake_is_among_the_nearest_training_images(data: ReportData) -> None:
    assert data.more_photos
    (mistake,) = [each for each in data.mistakes if each["name"].endswith("mislabeled.png")]
    nearest = data.more_photos.nearest[mistake["id"]]
    brighter = np.minimum(mistake["image"].astype(int), 225) + 30
    distances = [np.abs(image - brighter).mean() for _, image in nearest]
    assert len(nearest) == 9 and min(distances) < 5
    assert nearest[int(np.argmin(distances))][0] == CLASSES[1] == mistake["prediction"]


def test_sample_of_the_rows_is_called_that(probed: Run, data: ReportData) -> None:
    drawn = more_photos.of_probe(probed.stage.checkpoint, probed.stage.predictions, mistakes=[], most_rows=40)
    text = section(render(dataclasses.replace(data, more_photos=drawn)))
    assert "a quarter of 40 of the 80 photos" in text and "Sample of 80, cross-validated 40" in text
    assert "a sample does not tell whether more than all photos help" in text


@pytest.mark.parametrize("view", VIEWS)
def test_page_is_legible(browser: Browser, page: Path, view: str) -> None:
    browser.open(page, VIEWS[view])
    assert ask(browser, "untold()") == [] and ask(browser, "faint(4.5)") == []
    assert view == "dark" or ask(browser, "misplaced()") == []


def test_model_that_was_fine_tuned_has_no_such_section(finished: Finished) -> None:
    assert finished.data.more_photos is None and "more-photos" not in render(finished.data)
