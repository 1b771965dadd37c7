"""A mirror of a data set on loopback: serves a folder over HTTP and misbehaves on request."""

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import tenacity

from tasks.learning.downloading import fetch_file
from tasks.learning.sources import Source

Fault = int | Literal["truncated", "wrong", "reset", "garbage"] | None
"""What one request gets: an HTTP status, half of the file, other bytes of the same length, a connection
reset, something that is not HTTP, or (none) the file."""


class Mirror:
    """A running server: where it is, what it was asked for, and what it does wrong."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: list[str] = []
        self._faults: dict[str, Iterator[Fault]] = {}

    def misbehave(self, name: str, *faults: Fault, always: Fault = None) -> None:
        """Give the next requests for the file `name` these faults, in turn, and all later ones `always`."""
        self._faults[name] = itertools.chain(faults, itertools.repeat(always))

    def next_fault(self, name: str) -> Fault:
        """What the request that just came in for `name` gets."""
        self.requests.append(name)
        return next(self._faults.get(name, iter(())), None)


def fetch(source: Source, folder: Path, *addresses: str) -> dict[str, str]:
    """Fetch every file of `source` into `folder` without pauses, and return where each came from, by its name."""
    waits: dict[str, Any] = {"pauses": tenacity.wait_none(), "stall_s": 0.5}
    origins = [fetch_file(file, folder, mirrors=addresses, log=lambda *_: None, **waits) for file in source.files]
    return {origin.name: origin.url for origin in origins}


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[Mirror]:
    """A mirror with the files in `folder`."""
    with _Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.mirror
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """The address of a mirror that refuses every connection: its port is held, but nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}/"


class _Server(ThreadingHTTPServer):
    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.mirror = Mirror(f"http://127.0.0.1:{self.server_port}/")


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        path = self.server.folder / unquote(self.path).lstrip("/")
        fault = self.server.mirror.next_fault(path.name)
        if fault == "reset":
            self._reset()
        elif fault == "garbage":
            self.wfile.write(b"220 mail.example ESMTP\r\n")
        elif isinstance(fault, int):
            self.send_error(fault)
        elif not path.is_file():
            self.send_error(404)
        else:
            self._send(path.read_bytes(), fault)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests' output is for the tests."""

    def _send(self, content: bytes, fault: Fault) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        sent = {"truncated": content[: len(content) // 2], "wrong": content[::-1]}
        self.wfile.write(sent.get(str(fault), content))

    def _reset(self) -> None:
        with socket.socket(fileno=self.connection.detach()) as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
