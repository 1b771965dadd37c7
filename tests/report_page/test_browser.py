"""The report in a real browser: whole, legible in every view, and true to the evaluation it shows."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from storage import manifest
from storage.uri import URI
from tasks import report_page
from tasks.jobs.preprocess.data_problems import DataProblem
from tests.finished import Finished
from tests.report_page.browser import VIEWS, Browser, View
from tests.report_page.odd import of_classes, with_decision, with_evaluated

_CHECKS = Path(__file__).with_name("page.js").read_text()
_MIN_CONTRAST = 4.5  # WCAG 2, AA


@pytest.fixture(scope="module")
def unwieldy(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page full of long names: as many classes as the table of confusions takes, deep folders, many raw files."""
    data = of_classes(finished.data, tuple(f"long-tailed-duck-{number}" for number in range(20)))
    deep = "s3://models/" + 12 * "a-rather-long-folder-name/"
    files = tuple((f"{number:02}-{12 * 'part-'}.tar.gz", f"{64 * 'a'}\nfrom {deep}") for number in range(12))
    raw, *made = data.lineage
    made = [dataclasses.replace(step, uri=URI(f"{deep}{step.uri.name}")) for step in made if step.uri]
    data = with_decision(data, reason=f"{deep} cannot be scored")
    lineage = (dataclasses.replace(raw, facts=files), *made)
    data = dataclasses.replace(data, lineage=lineage, command=f"{data.command} --storage {deep}")
    return _written(tmp_path_factory.mktemp("unwieldy"), data)


@pytest.fixture(scope="module")
def classes(finished: Finished, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of that many classes; the last of skewed ones has no test rows."""
    is_skewed = "skewed" in request.param
    names = [f"reed warbler {number}" for number in range(40 if is_skewed else int(request.param.split()[0]))]
    sizes = [4000 // (number + 1) ** 2 for number in range(len(names))] if is_skewed else [25] * len(names)
    data = of_classes(finished.data, tuple(names))
    rows = zip(data.evaluated["per_class"], sizes, strict=True)
    data = with_evaluated(data, per_class=[row | {"support": size} for row, size in rows])
    counts = dict(zip(names, sizes, strict=True))
    data = dataclasses.replace(data, class_counts=dict.fromkeys(data.class_counts, counts))
    return _written(tmp_path_factory.mktemp("classes"), data)


@pytest.fixture
def stored(finished: Finished) -> Path:
    """The page in storage."""
    return Path(finished.report, "index.html")


def _written(folder: Path, data: report_page.ReportData) -> Path:
    page = folder / "index.html"
    folder.mkdir(parents=True, exist_ok=True)
    page.write_text(report_page.render(data))
    return page


def ask(browser: Browser, question: str) -> Any:
    """The answer of one function of `page.js`."""
    return browser.evaluate(f"{_CHECKS}\n{question}")


@pytest.mark.parametrize("view", VIEWS)
def test_page_asks_for_nothing_and_is_legible_in_every_view(
    browser: Browser, stored: Path, unwieldy: Path, view: str
) -> None:
    for page in (stored, unwieldy):
        browser.open(page, VIEWS[view])
        requests = [event["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
        assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]
        for logged in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            assert browser.seen(logged) == []
        assert page == unwieldy or ask(browser, f"faint({_MIN_CONTRAST})") == []
        assert view == "dark" or ask(browser, "misplaced()") == []


@pytest.mark.parametrize(
    ("classes", "view"),
    [("150 classes", "phone"), ("skewed classes", "light"), ("skewed classes", "print")],
    indirect=["classes"],
)
def test_page_of_many_or_skewed_classes_is_legible(browser: Browser, classes: Path, view: str) -> None:
    browser.open(classes, VIEWS[view])
    assert ask(browser, "misplaced()") == [] and ask(browser, f"faint({_MIN_CONTRAST})") == []
    top = browser.evaluate("[...document.querySelectorAll('.figures dt')].map((one) => one.textContent).slice(0, 3)")
    assert top == ["Test accuracy", "Balanced accuracy", "Macro F1"]


@pytest.mark.parametrize("width", [1400, 800, 390])
def test_no_word_is_broken(browser: Browser, finished: Finished, tmp_path: Path, width: int) -> None:
    data = of_classes(finished.data, ("Straßenschild", "Fußgängerampel", "blue dots"), channels=3)
    named = (one | {"name": f"Straßenschild/IMG_20240812_{one['id']:04}.jpg"} for one in data.mistakes)
    raw = dataclasses.replace(data.lineage[0], facts=(("train-images-idx3-ubyte.gz", 64 * "a"),))
    step = dataclasses.replace(data.lineage[1], title="Downloaded files")
    problem = DataProblem(summary="unbalanced classes: 412 training rows of Straßenschild", details=("a/b_c.png",))
    changes: dict[str, Any] = {"mistakes": tuple(named), "data_problems": (problem,), "producer": {}}
    page = _written(tmp_path, dataclasses.replace(data, lineage=(raw, step), **changes))
    browser.open(page, View(width=width, scheme="light", phone=width < 400))
    assert ask(browser, "broken(24)") == []
    assert ask(browser, "misplaced()") == []


def test_printed_page_shows_what_the_screen_folds_away(browser: Browser, stored: Path) -> None:
    folded = "[...document.querySelectorAll('details table')].map((table) => table.checkVisibility())"
    browser.open(stored, VIEWS["light"])
    assert browser.evaluate(folded) == [True, False, False, False]
    browser.open(stored, VIEWS["print"])
    assert browser.evaluate(folded) == [True, True, True, True]
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", browser.pdf())) <= 20


def test_page_is_accessible_and_leads_from_the_checksum_of_the_raw_files_to_the_report(
    browser: Browser, finished: Finished, stored: Path
) -> None:
    browser.open(stored, VIEWS["light"])
    assert ask(browser, "untold()") == []
    widths = browser.evaluate("[...document.images].map((image) => image.naturalWidth)")
    assert widths == [24] * (3 * 6 + 16 + 1 + 48), "training images, mistakes, left out, near duplicates"
    captions = "[...document.querySelectorAll('[aria-labelledby=mistakes] figcaption')].map((one) => one.innerText)"
    assert [" ".join(caption.split()) for caption in browser.evaluate(captions)] == [
        f"✗ {one['prediction']} true {one['label']} {one['probability']:.4f} {one['name']}"
        for one in finished.data.mistakes
    ]
    plan = finished.plan
    stages = (plan.preprocess, plan.train, plan.predict, plan.evaluate)
    uris = [plan.preprocess.raw, *(stage.target for stage in stages), finished.report]
    links = browser.evaluate("[...document.querySelectorAll('.lineage a')].map((one) => one.href)")
    assert links == [Path(uri, "_manifest.json").as_uri() for uri in uris]
    assert all(map(manifest.is_committed, uris))
    steps = ask(browser, "tables()")["URI and details of each step"]
    assert finished.data.lineage[0].facts[0][1].split()[0] in steps[1][1], "the digest of all files"
    assert [str(uri) in row[1] for uri, row in zip(uris, steps[2:], strict=True)] == [True] * 6
