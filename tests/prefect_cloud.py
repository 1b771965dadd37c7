"""A local stand-in for Prefect Cloud: a workspace's API over https for who has its key, in front of a real server."""

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.prefect_system import Server, free_port
from tests.runs import await_that

KEY = "pnu_4f1c7b2e"
_WORKSPACE = "/api/accounts/0a1b/workspaces/2c3d"
_HOP_BY_HOP = {"connection", "content-encoding", "content-length", "host", "transfer-encoding"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cloud:
    """A running workspace."""

    refused: list[str]
    """Requests without the key."""
    port: int
    certificate: Path

    @property
    def env(self) -> dict[str, str]:
        """What a user of the workspace sets, and what makes Prefect's client take the address for its Cloud."""
        host = f"https://127.0.0.1:{self.port}"
        return {
            "PREFECT_API_URL": host + _WORKSPACE,
            "PREFECT_API_KEY": KEY,
            "PREFECT_API_SSL_CERT_FILE": str(self.certificate),
            "PREFECT_CLOUD_API_URL": f"{host}/api",
        }


@contextlib.contextmanager
def in_front_of(server: Server, folder: Path) -> Iterator[Cloud]:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    _sign(key, certificate)
    cloud = Cloud(refused=[], port=free_port(), certificate=certificate)
    config = uvicorn.Config(
        _app(server, cloud),
        port=cloud.port,
        ssl_keyfile=str(key),
        ssl_certfile=str(certificate),
        log_level="error",
        lifespan="off",
    )
    proxy = uvicorn.Server(config)
    thread = threading.Thread(target=proxy.run)
    thread.start()
    try:
        await_that(lambda: proxy.started or not thread.is_alive(), limit_s=60)
        yield cloud
    finally:
        proxy.should_exit = proxy.force_exit = True
        thread.join()


def _sign(key: Path, certificate: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)


def _app(server: Server, cloud: Cloud) -> Starlette:
    client = httpx.AsyncClient(base_url=server.url, timeout=90, trust_env=False)

    async def forward(request: Request) -> Response:
        path = request.path_params["path"]
        if request.headers.get("authorization") != f"Bearer {KEY}":
            cloud.refused.append(path)
            return Response("no key", 401)
        if path.startswith("admin/"):
            return Response("not found", 404)
        headers = {
            name: value for name, value in request.headers.items() if name not in (*_HOP_BY_HOP, "authorization")
        }
        answer = await client.request(
            request.method, f"/{path}", params=request.query_params, headers=headers, content=await request.body()
        )
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP_BY_HOP}
        return Response(answer.content, answer.status_code, kept)

    async def stream(socket: WebSocket) -> None:
        path = socket.path_params["path"]
        if not await _is_authorized(socket):
            cloud.refused.append(path)
            await socket.close()
            return
        address = f"{server.url}/{path}".replace("http", "ws", 1)
        async with connect(address, subprotocols=[Subprotocol("prefect")]) as behind:
            await behind.send(json.dumps({"type": "auth", "token": None}))
            await behind.recv()
            await _relay(socket, behind)

    methods = ["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"]
    routes = [
        Route(_WORKSPACE + "/{path:path}", forward, methods=methods),
        WebSocketRoute(_WORKSPACE + "/{path:path}", stream),
    ]
    return Starlette(routes=routes)


async def _is_authorized(socket: WebSocket) -> bool:
    """Whether a client has the key: those that send events have it in a header, subscribers say it first."""
    if "authorization" in socket.headers:
        await socket.accept()
        return socket.headers["authorization"] == f"bearer {KEY}"
    await socket.accept(subprotocol="prefect")
    message = await socket.receive_json()
    await socket.send_json({"type": "auth_success"})
    return bool(message["token"] == KEY)


async def _relay(socket: WebSocket, behind: ClientConnection) -> None:
    async def back() -> None:
        async for message in behind:
            await socket.send_text(str(message))

    task = asyncio.create_task(back())
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            await behind.send(await socket.receive_text())
    task.cancel()
