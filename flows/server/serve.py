"""`data-to-model serve`: a model over HTTP; each new champion is loaded beside the one in use, and then replaces it."""

import contextlib
import os
import signal
import threading
import time

from flows.server.up import bound
from storage import champions, exits
from storage.admin import catalog
from storage.process import LOOPBACK
from storage.uri import parse_root, redact_text
from tasks.planning import model_requests

PASSWORD = "PIPELINE_SERVE_PASSWORD"
_LOOK_S, _RETRY_S = 3.0, 60.0
"""Seconds between two looks at the registry, and until a champion that could not be loaded is tried again."""
_END_S = 10
"""Seconds that requests may take to end when the server is told to."""


def main(storage: str, model: str, *, host: str, port: int, queue: int, megabytes: int) -> int:
    """Serve until Ctrl-C or SIGTERM and return 0; exit with 2 for an invalid request."""
    password = os.environ.get(PASSWORD, "")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service manager stops it this way
    with contextlib.suppress(KeyboardInterrupt):
        with exits.refused_if_invalid():
            model_requests.require_packages("serve", "onnxruntime", "prometheus_client", "uvicorn")
            if host not in LOOPBACK and not password:
                raise ValueError(f"--host {host} lets other machines in: set {PASSWORD}, or omit --host")
            socket = bound(host, port)
            following = Following(storage, model)
        import uvicorn

        from flows.server.endpoint import make_app

        app = make_app(following, password=password, queue=queue, megabytes=megabytes)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=_END_S)
        threading.Thread(target=following.follow, daemon=True).start()
        exits.note(f"serving {following.model} at http://{f'[{host}]' if ':' in host else host}:{port}; Ctrl-C ends it")
        uvicorn.Server(config).run(sockets=[socket])
    return 0


class Following:
    """The model in use: the champion of a registered model, or one that never changes."""

    def __init__(self, storage: str, model: str) -> None:
        """Export and load `model`, named as in all commands; raise `ValueError` if that is not possible."""
        self._root = parse_root(storage)
        self.model = f"champion:{champions.usual(self._root)}" if model == "champion" else model
        self.problem = ""
        """Why the champion is not in use; empty if it is."""
        self._failed = ("", 0.0)
        """The champion that could not be loaded, and when it is tried again, by the monotonic clock."""
        self._load()

    def follow(self) -> None:
        """Use each new champion from now on; if one cannot be used, the model in use stays."""
        while self.model.startswith("champion:"):
            time.sleep(_LOOK_S)
            champion = ""
            try:
                champion = catalog.named(self._root, self.model, option="model")
                if champion == self.served.checkpoint:
                    self.problem, self._failed = "", ("", 0.0)
                elif champion != self._failed[0] or time.monotonic() >= self._failed[1]:
                    self._load()
                    exits.note(f"serving {champion}")
            except Exception as error:  # whatever is wrong with it, requests get answers
                self._failed = (champion, time.monotonic() + _RETRY_S)
                self.problem, earlier = redact_text(f"{type(error).__name__}: {error}"), self.problem
                if self.problem != earlier:
                    exits.note(f"still serving {self.served.checkpoint}: {self.problem}")

    def _load(self) -> None:
        from tasks.export import export
        from tasks.exporting.served import ServedModel
        from tasks.orchestration.stage import using

        request = model_requests.resolve_export(storage=self._root, model=self.model)
        with using(request.storage, [request.checkpoint, request.prepared]):
            self.served = ServedModel(export.fn(request))
        self.problem = ""
