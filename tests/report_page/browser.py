"""A headless Chromium driven over its DevTools protocol."""

import base64
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.runs import await_that

_LIMIT_S = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """How a page is looked at."""

    width: int
    """Of the window, in CSS pixels."""
    scheme: str
    """`light` or `dark`."""
    media: str = "screen"
    """`screen` or `print`."""
    phone: bool = False
    """Whether it has a phone's viewport and pixels."""


VIEWS = {
    "light": View(width=1280, scheme="light"),
    "dark": View(width=1280, scheme="dark"),
    "phone": View(width=390, scheme="light", phone=True),
    "print": View(width=688, scheme="light", media="print"),  # A4 less its margins
}


class Browser:
    """One tab; everything that the page asks for, logs or throws is kept since the last `open`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session: str | None = None
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one command; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._connection.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path | str, view: View) -> None:
        """Load `page`, a file or an address, until all of it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=view.width, height=844, deviceScaleFactor=2 if view.phone else 1, mobile=view.phone,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": view.scheme}]
        self.call("Emulation.setEmulatedMedia", media=view.media, features=features)
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not self.seen("Page.loadEventFired"):
            self._receive()

    def seen(self, method: str) -> list[dict[str, Any]]:
        """What the events of one kind said."""
        return [event["params"] for event in self.events if event["method"] == method]

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def pdf(self) -> bytes:
        """The page printed on A4."""
        answer = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])

    def _receive(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._connection.recv(_LIMIT_S))
        if "method" in answer:
            self.events.append(answer)
        return answer


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A Chromium of its own that keeps everything in `profile` and ends with the context.

    Skips the test if it is not installed, or fails it where REQUIRE_CHROMIUM is set, as in CI.
    """
    if not shutil.which("chromium"):
        reason = "chromium is not installed: apt-get install --no-install-recommends chromium"
        pytest.fail(reason) if os.environ.get("REQUIRE_CHROMIUM") else pytest.skip(reason)
    command = ["chromium", "--headless", "--remote-debugging-port=0", f"--user-data-dir={profile}", "--disable-gpu"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    with (profile / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    port = profile / "DevToolsActivePort"
    try:
        await_that(lambda: process.poll() is not None or _lines(port) == 2, limit_s=_LIMIT_S, interval_s=0.02)
        assert process.poll() is None, (profile / "log").read_text()
        number, path = port.read_text().split()
        with connect(f"ws://127.0.0.1:{number}{path}", max_size=None, proxy=None) as connection:
            yield Browser(connection)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _lines(path: Path) -> int:
    return len(path.read_text().split()) if path.exists() else 0
