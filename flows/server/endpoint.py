"""The HTTP side of `data-to-model serve`: predictions, health and metrics."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, Histogram, generate_latest
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from storage.process import LOOPBACK
from tasks.learning.decode import Unreadable
from tasks.resources import machine

if TYPE_CHECKING:
    from flows.server.serve import Following

_BODY_S = 30
"""Seconds that a client may take to send an image."""


def make_app(following: "Following", *, password: str, queue: int, megabytes: int) -> FastAPI:
    """Return the application, for so many requests at once and files of at most so many 10**6 bytes.

    Without a password it answers only to names of this machine: a web page could get here by a name of its own.
    """
    app = FastAPI(title="data-to-model", docs_url=None, redoc_url=None)
    pool, places, registry = ThreadPoolExecutor(machine.cores()), asyncio.BoundedSemaphore(queue), CollectorRegistry()
    seconds = Histogram("data_to_model_request_seconds", "Time of predictions", ["status"], registry=registry)
    stale = Gauge("data_to_model_stale", "1 if the champion cannot be used", registry=registry)
    in_use = Gauge("data_to_model_model", "1 for the model in use", ["name", "digest"], registry=registry)

    def check(credentials: Annotated[HTTPBasicCredentials, Depends(HTTPBasic())]) -> None:
        if not hmac.compare_digest(credentials.password.encode(), password.encode()):
            raise HTTPException(401, "the password is wrong", headers={"WWW-Authenticate": "Basic"})

    guarded = [Depends(check)] if password else []
    if not password:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK)

    @app.middleware("http")
    async def measure(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        started, status = time.monotonic(), 500
        try:
            response = await answer(request)
            status = response.status_code
        finally:
            if request.url.path == "/predict":
                seconds.labels(status).observe(time.monotonic() - started)
        return response

    @app.post("/predict", dependencies=guarded)
    async def predict(request: Request) -> dict[str, Any]:
        """Answer for the image file that is the body."""
        if places.locked():
            raise HTTPException(503, f"{queue} requests are waiting already", headers={"Retry-After": "1"})
        async with places:
            content = await _read(request, most=megabytes * 10**6)
            try:
                return await asyncio.get_running_loop().run_in_executor(pool, following.served.answer, content)
            except Unreadable as error:
                raise HTTPException(422, f"the image cannot be used: {error}") from None

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Answer whenever requests get predictions; `problem` says why not by the champion."""
        status = {"status": "stale" if following.problem else "ok", "problem": following.problem or None}
        return status | {"model": following.model, "checkpoint": following.served.named}

    @app.get("/metrics", dependencies=guarded)
    async def metrics() -> Response:
        stale.set(bool(following.problem))
        in_use.clear()
        in_use.labels(**following.served.named).set(1)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def _read(request: Request, *, most: int) -> bytes:
    content = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for chunk in request.stream():
                content += chunk
                if len(content) > most:
                    raise HTTPException(413, f"the image has more than {most:,} bytes; send a smaller one")
    except (TimeoutError, ClientDisconnect):
        raise HTTPException(408, f"the image did not arrive within {_BODY_S} s") from None
    return bytes(content)
