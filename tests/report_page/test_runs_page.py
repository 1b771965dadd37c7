"""The page of all runs in a real browser: true to storage, legible, and harmless."""

import re
from pathlib import Path
from typing import Any

import pytest

from flows.__main__ import main
from storage import files, manifest
from storage.uri import Root
from tasks import report_page
from tests import committed
from tests.finished import Finished
from tests.report_page.browser import VIEWS, Browser
from tests.report_page.test_browser import ask

_SHOWN = "[...document.querySelectorAll('.runs tbody tr')].filter((row) => row.checkVisibility())"
_HOSTILE = "<img src=x onerror=alert(1)></script><script>document.title='taken'</script>"


def write(root: Root) -> Path:
    """Write the page as a user does, beside the root, and return it."""
    page = Path(f"{root} runs.html")
    assert main(["ls", "runs", "--storage", root, "--html", str(page)]) == 0
    return page


def commit_reports(finished: Finished, count: int, **about: Any) -> None:
    """Commit more reports of the last run, with other statistics, as of runs with the same result."""
    stage = finished.run.stage
    for number in range(count):
        uri = finished.root.child(f"reports/{number:02}-0123456789ab")
        committed.commit(uri, "report", parents=stage.parents, parameters=stage.values, **about)


@pytest.fixture(scope="module")
def pages(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Pages of 2 and of 40 runs."""
    few, many = (finished.copy_to(tmp_path_factory.mktemp("runs") / "root") for _ in range(2))
    changes = {"learning_rate": 0.001, "label_smoothing": 0.1, "seed": 3}
    commit_reports(many, 38, registered_model="holiday-photos-1a2b3c4d", recipe="images-finetune", changes=changes)
    return {2: write(few.root), 40: write(many.root)}


def shown(browser: Browser, column: int) -> list[str]:
    """Texts of a column, of the rows that are visible, from top to bottom."""
    texts: list[str] = browser.evaluate(f"{_SHOWN}.map((row) => row.cells[{column}].innerText)")
    return texts


def test_page_shows_the_runs_of_storage_and_links_to_their_reports(browser: Browser, pages: dict[int, Path]) -> None:
    browser.open(pages[40], VIEWS["light"])
    root = pages[40].parent / pages[40].name.removesuffix(" runs.html")
    links = browser.evaluate(f"{_SHOWN}.map((row) => row.querySelector('a').href)")
    reports = {(path / "index.html").as_uri() for path in (root / "reports").iterdir()}
    assert len(links) == 40 and set(links) == reports
    (champion,) = browser.evaluate("[...document.querySelectorAll('.models b')].map((one) => one.innerText)")
    assert champion == "1.0000"
    requests = [event["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith("data:")] == [pages[40].as_uri()]
    assert browser.seen("Log.entryAdded") == browser.seen("Runtime.exceptionThrown") == []


@pytest.mark.parametrize("view", VIEWS)
def test_page_is_legible_and_accessible_and_no_column_cut_off(
    browser: Browser, pages: dict[int, Path], view: str
) -> None:
    width = "(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)(document.querySelector('[aria-label=Runs]'))"
    for page in pages.values():
        browser.open(page, VIEWS[view])
        assert browser.evaluate(width) <= 0
        assert ask(browser, "untold()") == []
        assert ask(browser, "misplaced()") == []
        assert ask(browser, "faint(4.5)") == []


def test_stored_text_is_shown_and_never_executed(browser: Browser, finished: Finished, tmp_path: Path) -> None:
    copy = finished.copy_to(tmp_path / "root")
    commit_reports(copy, 1, recipe=_HOSTILE, registered_model=_HOSTILE, changes={"augment": _HOSTILE})
    browser.open(write(copy.root), VIEWS["light"])
    assert browser.evaluate("document.title") == "Runs in root"
    assert browser.evaluate("document.images.length + document.scripts.length") == 0
    assert browser.seen("Page.javascriptDialogOpening") == [] and shown(browser, 1)[0].startswith(_HOSTILE)


def test_damaged_runs_are_named_and_the_others_shown(finished: Finished, tmp_path: Path) -> None:
    copy = finished.copy_to(tmp_path / "root")
    (other,) = {path.name for path in Path(copy.root, "reports").iterdir()} - {copy.report.name}
    files.put(copy.report.child(manifest.NAME), b"garbage")
    page = report_page.render_runs(copy.root, links_to="/").decode()
    assert f"{copy.report}/_manifest.json cannot be read" in page
    assert re.findall(r'<th scope="row"><a href="([^"]*)"', page) == [f"/reports/{other}/index.html"]
