"""The report in a real browser: whole, legible in every view, and true to the evaluation it shows."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from storage import manifest
from storage.decision import Decision
from storage.uri import URI
from tasks import report_page
from tasks.evaluate import read_evaluation
from tasks.jobs.preprocess.data_problems import DataProblem
from tasks.planning.plan import Plan
from tasks.report import gather, run_of
from tasks.report_page import pictures
from tests.report_page.browser import VIEWS, Browser, View
from tests.report_page.results import commit_results
from tests.report_page.test_report_page import fake_data, with_data, with_decision

_CHECKS = Path(__file__).with_name("page.js").read_text()
_MIN_CONTRAST = 4.5  # WCAG 2, AA


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A page made from committed results, and where they lie."""

    page: Path
    plan: Plan
    decision: Decision

    def evaluated(self, name: str) -> Any:
        """One file of the evaluation as it lies in storage."""
        return json.loads((Path(self.plan.evaluate.target) / f"{name}.json").read_bytes())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("results")
    plan, decision = commit_results(folder)
    run = run_of(plan.evaluate.target, decision, plan.recipe, plan.registered_model, command=plan.command)
    data = gather(run)
    worst = [row["id"] for row in read_evaluation(plan.evaluate.target)["worst"]]
    shown = pictures.of_mistakes(plan.predict.target, worst=worst) | pictures.of_data(plan.preprocess.target)
    data = dataclasses.replace(data, **shown)
    return Report(page=_written(Path(run.target), data), plan=plan, decision=decision)


@pytest.fixture(scope="module")
def unwieldy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page full of long names: as many classes as the table of confusions takes, deep folders, many raw files."""
    data = with_data(fake_data(tuple(f"long-tailed-duck-{index}" for index in range(20))))
    deep = "s3://models/" + 12 * "a-rather-long-folder-name/"
    files = tuple((f"{number:02}-{12 * 'part-'}.tar.gz", f"{64 * 'a'}\nfrom {deep}") for number in range(12))
    lineage = [
        dataclasses.replace(step, uri=URI(f"{deep}{step.uri.name}"), link=f"../../{step.uri.name}")
        for step in data.lineage
        if step.uri
    ]
    lineage.insert(0, dataclasses.replace(data.lineage[0], facts=files))
    data = with_decision(data, reason=f"{deep} cannot be scored")
    data = dataclasses.replace(data, lineage=tuple(lineage), command=f"{data.command} --storage {deep}")
    return _written(tmp_path_factory.mktemp("unwieldy"), data)


@pytest.fixture(scope="module")
def classes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of that many classes, with a temperature; the last of skewed ones has no test rows."""
    is_skewed = "skewed" in request.param
    names = [f"reed warbler {number}" for number in range(40 if is_skewed else int(request.param.split()[0]))]
    sizes = [4000 // (number + 1) ** 2 for number in range(len(names))] if is_skewed else [25] * len(names)
    data = with_data(fake_data(tuple(names)))
    per_class = [row | {"support": size} for row, size in zip(data.evaluated["per_class"], sizes, strict=True)]
    counts = {split: dict(zip(names, sizes, strict=True)) for split in ("train", "validation", "test")}
    more: dict[str, Any] = {"temperature": 1.4, "class_counts": counts}
    changed = dataclasses.replace(data, evaluated=data.evaluated | {"per_class": per_class}, **more)
    return _written(tmp_path_factory.mktemp("classes"), changed)


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
    browser: Browser, report: Report, unwieldy: Path, view: str
) -> None:
    for page in (report.page, unwieldy):
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
def test_no_word_is_broken(browser: Browser, tmp_path: Path, width: int) -> None:
    classes = ("Straßenschild", "Fußgängerampel", "blue dots")
    data = with_data(fake_data(classes, channels=3), name="Straßenschild")
    named = (dataclasses.replace(one, file=f"Straßenschild/IMG_20240812_{one.id:04}.jpg") for one in data.mistakes)
    step = dataclasses.replace(data.lineage[1], title="Downloaded files")
    counts = {split: dict.fromkeys(classes, 1234) for split in ("train", "validation", "test")}
    problem = DataProblem(summary="unbalanced classes: 412 training rows of Straßenschild", details=("a/b_c.png",))
    changes: dict[str, Any] = {"mistakes": tuple(named), "class_counts": counts, "data_problems": (problem,)}
    page = _written(tmp_path, dataclasses.replace(data, lineage=(data.lineage[0], step), **changes))
    browser.open(page, View(width=width, scheme="light", phone=width < 400))
    assert ask(browser, "broken(24)") == []
    assert ask(browser, "misplaced()") == []


def test_printed_page_shows_what_the_screen_folds_away(browser: Browser, report: Report) -> None:
    folded = "[...document.querySelectorAll('details table')].map((table) => table.checkVisibility())"
    browser.open(report.page, VIEWS["light"])
    assert browser.evaluate(folded) == [True, False, False]
    browser.open(report.page, VIEWS["print"])
    assert browser.evaluate(folded) == [True, True, True]
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", browser.pdf())) <= 12


def test_page_is_accessible_and_shows_what_storage_holds(browser: Browser, report: Report) -> None:
    browser.open(report.page, VIEWS["light"])
    assert ask(browser, "untold()") == []
    widths = browser.evaluate("[...document.images].map((image) => image.naturalWidth)")
    assert widths == [28] * (40 + min(16, len(report.evaluated("worst"))))
    tables = ask(browser, "tables()")
    coverage = {f"{row['confidence']:.2f}": row["rows"] for row in report.evaluated("coverage")}
    shown = tables["Test rows by their confidence"][1:]
    assert len(shown) >= 3 and all(int(count) == coverage[at.removesuffix(" ★")] for at, count, *_ in shown)
    counts = tables["Rows of every class in each split"][1:]
    assert counts == [[str(digit), "4", "2", "40", ""] for digit in range(10)]
    problems = browser.evaluate("[...document.querySelectorAll('.problem')].map((one) => one.textContent)")
    assert problems == [
        "1 file left out (not images or Parquet, by their file names).",
        "2 rows excluded (label out of range: 2).",
    ]
    captions = "[...document.querySelectorAll('[aria-labelledby=mistakes] figcaption')].map((one) => one.innerText)"
    assert [caption.split() for caption in browser.evaluate(captions)] == [
        ["✗", str(row["prediction"]), "true", str(row["label"]), f"{row['probability']:.4f}", "row", str(row["id"])]
        for row in report.evaluated("worst")[:16]
    ]


def test_lineage_leads_from_the_checksums_of_the_raw_files_to_the_report(browser: Browser, report: Report) -> None:
    browser.open(report.page, VIEWS["light"])
    plan = report.plan
    assert plan.download
    uris: list[URI] = [
        plan.download.target,
        plan.preprocess.raw,
        plan.preprocess.target,
        plan.train.target,
        plan.predict.target,
        plan.evaluate.target,
    ]
    uris += [URI(str(report.page.parent))]
    links = browser.evaluate("[...document.querySelectorAll('.lineage a')].map((one) => one.href)")
    assert links == [Path(uri, "_manifest.json").as_uri() for uri in uris]
    assert all(manifest.is_committed(uri) for uri in uris[:-1])
    steps = ask(browser, "tables()")["URI and details of each step"]
    assert 8 * "0123abcd" in steps[1][1] and 8 * "4567cdef" in steps[1][1]
    assert [str(uri) in row[1] for uri, row in zip(uris, steps[2:], strict=True)] == [True] * 7
