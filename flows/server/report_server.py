"""Reports over HTTP, for the links on Prefect's pages: committed reports of one storage root, on loopback only."""

import contextlib
import functools
import re
import threading
from collections.abc import Iterator
from contextvars import Context, copy_context
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prefect.variables import Variable

from flows.server import status
from storage import manifest
from storage.kinds import KINDS, ReportURI
from storage.manifest import Damaged
from storage.uri import Root
from tasks import report_page
from tasks.orchestration.artifacts import REPORTS_URL

_HOST = "127.0.0.1"
_NAME = "[a-z0-9][A-Za-z0-9._-]*-[0-9a-f]{12}"
_PAGE = re.compile(rf"(?:/reports)?/({_NAME})/index\.html")
_MANIFEST = re.compile(rf"/((?:{'|'.join(kind.folder for kind in KINDS.values())})/{_NAME})/{re.escape(manifest.NAME)}")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    # No page needs scripts; one that somebody else wrote to the storage must not reach Prefect's API from here.
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:",
}


class _Handler(BaseHTTPRequestHandler):
    """Answers `GET` of a committed report or manifest with its verified bytes, of `/` and `/index.html` with all runs.

    The page of all runs is rendered anew from verified manifests. `/status` has what `data-to-model status` prints,
    with 503 if something is wrong. All else gets 403 or 404.
    """

    def __init__(self, root: Root, context: Context, *arguments: object) -> None:
        self._root = root
        self._context = context
        """With Prefect's settings, which another thread does not have."""
        super().__init__(*arguments)  # type: ignore[arg-type]  # socket, address and server, as the server passes them

    def do_GET(self) -> None:
        if self.headers.get("Host", "").partition(":")[0] not in (_HOST, "localhost"):  # DNS rebinding
            self.send_error(403)
            return
        kind, code = "text/html; charset=utf-8", 200
        try:
            if self.path in ("/", "/index.html"):
                content = report_page.render_runs(self._root, links_to="/")
            elif self.path == "/status":
                problems = self._context.copy().run(status.problems, self._root)
                content, kind = "\n".join(problems or [status.WELL]).encode(), "text/plain; charset=utf-8"
                code = 503 if problems else 200
            elif match := _MANIFEST.fullmatch(self.path):
                content, kind = manifest.load(self._root.child(match[1])).to_json(), "application/json"
            elif match := _PAGE.fullmatch(self.path):
                uri = ReportURI(self._root.child(f"reports/{match[1]}"))
                pages = [file for file in manifest.load(uri).files if file.path == "index.html"]
                content = b"".join(manifest.read_file(uri, file) for file in pages)
            else:
                raise ValueError("not the path of a result")
        except (OSError, ValueError, Damaged):
            self.send_error(404, "no such committed result")
            return
        self.send_response(code)
        for name, value in (_HEADERS | {"Content-Type": kind, "Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing: requests are not part of what `make up` shows."""


@contextlib.contextmanager
def serving(root: Root, port: int) -> Iterator[str]:
    """Serve the reports of `root` on loopback; yield the address, and name it to runs in a variable of the server."""
    address = f"http://{_HOST}:{port}"
    with ThreadingHTTPServer((_HOST, port), functools.partial(_Handler, root, copy_context())) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Variable.set(REPORTS_URL, address, overwrite=True)
        try:
            yield address
        finally:
            server.shutdown()
