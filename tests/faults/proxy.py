"""A loopback proxy in front of a real S3 server that disturbs selected requests."""

import contextlib
import dataclasses
import http.client
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Fault = str
"""What a request gets: one of the refusals or listings; a `reset` before it is handled; silence (`stall`); half of the
body (`truncated`); a reset after it was handled (`lost`); or its answer drop by drop (`slow`)."""
_REFUSALS: dict[str, tuple[int, str]] = {
    "500": (500, "InternalError"),
    "503": (503, "ServiceUnavailable"),
    "403": (403, "AccessDenied"),
    "skew": (403, "RequestTimeTooSkewed"),
    "expired": (400, "ExpiredToken"),
    "checksum": (400, "InvalidArgument"),
    "conflict": (409, "OperationAborted"),
}
"""Status and code of each refusal."""
_KEYS = [
    f"all/{path}" for path in ("train/a/1.png", "train/b/2.png", "test/a/3.png", "train/a//4.png", "train/../5.png")
]
_LISTINGS: dict[str, str] = {
    "endless": "<IsTruncated>true</IsTruncated><NextContinuationToken>1</NextContinuationToken>",
    "odd keys": "".join(
        f"<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>2026-01-01T00:00:00Z</LastModified>"
        "<ETag>1</ETag></Contents>"
        for key, size in [*((key, 1) for key in _KEYS), ("all/train/a/", 0)]
    ),
}
"""A listing whose next page is itself, and one with keys that SeaweedFS folds into those without the empty part."""
STALL_S = 75.0
"""How long a stalled request is held: longer than a client waits."""
_SLOW_S = 3.0
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@dataclasses.dataclass(kw_only=True)
class RequestFault:
    """Which requests get a fault, and which."""

    fault: Fault
    method: str
    """GET, PUT, ..."""
    part: str
    """Of the path, such as `/_manifest.json`."""
    times: int


class Proxy:
    """A running proxy: its address, and its pending and injected faults."""

    def __init__(self, server: str) -> None:
        self.server = urlsplit(server).netloc
        self.endpoint = ""
        self.pending: list[RequestFault] = []
        self.injected: list[tuple[Fault, str, str]] = []
        self._taking = threading.Lock()
        self.ended = threading.Event()

    def inject(self, fault: Fault, *methods: str, part: str = "", times: int = 1) -> None:
        """Give the next `times` requests of each of `methods` whose path holds `part` a fault, and no others."""
        self.pending = [RequestFault(fault=fault, method=method, part=part, times=times) for method in methods]

    def fault_of(self, method: str, path: str) -> Fault | None:
        """What the request that just came in gets."""
        with self._taking:
            for planned in self.pending:
                if planned.times and planned.method == method and planned.part in path:
                    planned.times -= 1
                    self.injected.append((planned.fault, method, path))
                    return planned.fault
        return None


@contextlib.contextmanager
def serve(server: str) -> Iterator[Proxy]:
    """A proxy before the S3 server at `server`, `http://host:port`, on a free port."""
    proxy = Proxy(server)
    with _Server(proxy) as listener:
        proxy.endpoint = f"http://127.0.0.1:{listener.server_port}"
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.ended.set()
            listener.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer's head and body leave apart: the body would wait for the head's receipt

    def do_GET(self) -> None:
        body = self._body()
        fault = self.server.proxy.fault_of(self.command, self.path)
        if fault == "reset":
            self._reset()
        elif fault == "stall":
            self.server.proxy.ended.wait(STALL_S)
            self._reset()
        elif fault in _REFUSALS or fault in _LISTINGS:
            self._refuse(fault)
        else:
            self._answer(body, fault)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the injected faults are in `Proxy.injected`."""

    def _body(self) -> bytes:
        """What came with the request, as it came: chunks with their frames."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        frames = b""
        while True:
            line = self.rfile.readline()
            size = int(line.partition(b";")[0], 16)
            frames += line + self.rfile.read(size) + self.rfile.readline()
            if size == 0:
                return frames

    def _refuse(self, fault: Fault) -> None:
        status, code = _REFUSALS.get(fault, (200, ""))
        error = f"<Error><Code>{code}</Code><Message>spoilt: {fault}</Message></Error>"
        content = (f"<List>{_LISTINGS[fault]}</List>" if fault in _LISTINGS else error).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _answer(self, body: bytes, fault: Fault | None) -> None:
        upstream = http.client.HTTPConnection(self.server.proxy.server, timeout=60)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect"):
                upstream.putheader(name, value)  # the host too, since it is signed
        upstream.endheaders(body)
        answer = upstream.getresponse()
        content = answer.read()
        if fault == "lost":
            self._reset()
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        length = answer.headers["Content-Length"] if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self._send(content, fault)
        upstream.close()

    def _send(self, content: bytes, fault: Fault | None) -> None:
        if fault == "truncated":
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        elif fault == "slow":
            for start in range(0, len(content), max(1, len(content) // 10)):
                self.wfile.write(content[start : start + max(1, len(content) // 10)])
                time.sleep(_SLOW_S / 10)
        else:
            self.wfile.write(content)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
