"""A report opens from the page of its run: served over HTTP by `make up`, and nothing else of the storage with it."""

import http.client
import re
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.artifacts import Artifact
from prefect.variables import Variable

from flows.server import report_server
from storage import commits, files, manifest
from storage.uri import Root
from tasks.report import report
from tests import committed
from tests.finished import Finished
from tests.prefect_system import free_port
from tests.report_page.browser import VIEWS, Browser

pytestmark = pytest.mark.usefixtures("prefect_server")
_PAGE = b"<title>a report</title>"


def answer(address: str, path: str, *, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, bytes]:
    """Status and body of a request whose path is sent as it is."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=10)
    connection.request(method, path, headers={"Host": host})
    response = connection.getresponse()
    status, body = response.status, response.read()
    connection.close()
    return status, body


def test_only_committed_reports_are_served_and_only_to_this_machine(root: Root) -> None:
    names = {which: f"{which}-0123456789ab" for which in ("whole", "unfinished", "changed")}
    for which, name in names.items():
        uri = root.child(f"reports/{name}")
        page = commits.write_file(uri, "index.html", _PAGE, fixed_name=True)
        if which != "unfinished":
            committed.commit(uri, "report", [page])
    files.put(root.child(f"reports/{names['changed']}/index.html"), _PAGE.replace(b"report", b"threat"))
    files.put(root.child("registry/secret"), b"{}")
    with report_server.serving(root, free_port()) as address:
        whole = f"/{names['whole']}/index.html"
        assert answer(address, whole) == (200, _PAGE)
        assert answer(address, f"/reports{whole}") == (200, _PAGE)
        recorded = f"reports/{names['whole']}/{manifest.NAME}"
        assert answer(address, f"/{recorded}") == (200, files.read(root.child(recorded)))
        status, runs = answer(address, "/index.html")
        assert answer(address, "/")[0] == 200
        code, problems = answer(address, "/status")
        assert code == 503 and b"no deployment has a schedule" in problems
        assert status == 200 and f"reports{whole}".encode() in runs and names["unfinished"].encode() not in runs
        assert answer(address, whole, host="localhost:4201")[0] == 200
        assert answer(address, whole, host="evil.example")[0] == 403
        assert answer(address, whole, method="POST")[0] == 501
        for path in (
            f"/{names['unfinished']}/index.html",
            f"/{names['changed']}/index.html",
            f"/reports/{names['unfinished']}/_manifest.json",
            f"/registry/{names['whole']}/_manifest.json",
            f"/{names['whole']}/../../registry/secret",
            "/..%2f..%2fregistry%2fsecret#-0123456789ab/index.html",
            f"http://elsewhere{whole}",
        ):
            assert answer(address, path)[0] == 404, path


def test_the_report_opens_from_the_link_on_prefects_page_or_its_place_is_named(
    browser: Browser, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = finished.copy_to(tmp_path / "Meine Projekte %20")
    plan, decision = copy.plan, copy.decision
    monkeypatch.setenv("PIPELINE_STORAGE", str(plan.root))

    @flow
    def published() -> tuple[str, str]:
        target = report.fn(plan.evaluate.target, decision, plan.recipe, plan.registered_model)
        artifact: Any = Artifact.get(f"{plan.registered_model}-summary")
        return str(target), str(artifact.data)

    Variable.unset("reports_url")
    target, text = published()
    assert text.endswith(f"\nOpen this file in a browser:\n\n    {target}/index.html\n")
    with report_server.serving(plan.root, free_port()):
        _, text = published()
        link = re.search(r"\[Report page\]\((http://[^ )]*)\)", text)
        assert link is not None, text
        monkeypatch.setenv("PIPELINE_STORAGE", str(tmp_path / "elsewhere"))
        assert "Open this file in a browser" in published()[1], "that root is not the one that is served"
        browser.open(link[1], VIEWS["light"])
        assert browser.evaluate("document.querySelector('h1').textContent").strip()
        assert browser.evaluate("document.images.length && [...document.images].every(one => one.naturalWidth)")
        assert not browser.seen("Log.entryAdded") and browser.evaluate("location.href") == link[1]
