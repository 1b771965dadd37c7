"""What a cluster that is just starting can give: its dashboard answers before its nodes are there."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tasks.cluster import capacity


@contextlib.contextmanager
def dashboard(*answers: list[dict[str, Any]]) -> Iterator[str]:
    """The address of one that lists these nodes, one answer after the other, the last one for ever."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listed = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": {"result": {"result": listed}}}).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


NODE = {"state": "ALIVE", "resources_total": {"CPU": 4.0}}


def test_nodes_that_are_not_there_yet_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with dashboard([], [{"state": "ALIVE", "resources_total": {}}], [NODE]) as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        capacity.check_workers(None)
        with pytest.raises(ValueError, match="--workers must be at most 3 on a cluster with 4 CPUs, got 4"):
            capacity.check_workers(4)


def test_a_cluster_without_any_cpu_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_ASK_S", 0.5)
    with dashboard([{"state": "DEAD", "resources_total": {"CPU": 4.0}}]) as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ValueError, match=f"RAY_ADDRESS={address}: no node of that cluster has any CPUs"):
            capacity.check_workers(None)
