"""`data-to-model serve` answers as `predict` does, follows the registry without a failed request, and has limits."""

import asyncio
import base64
import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from storage import champions, manifest, tables
from storage.kinds import PROBABILITY_PREFIX
from tasks.images import embedding_rows
from tasks.learning.inference import Inference
from tests.finished import Finished
from tests.prefect_system import free_port
from tests.runs import CHECKOUT, await_that

pytestmark = pytest.mark.slow
_PASSWORD = "a long word"
_QUEUE = 32
_A_SECOND = 20
"""Requests."""


@contextlib.contextmanager
def serving(runs: Finished, log: Path, *, password: str = "", end: int = signal.SIGTERM) -> Iterator[httpx.Client]:
    """A client of a server of the champion; the server ends well by the signal `end`."""
    port, env = free_port(), os.environ | {"PIPELINE_SERVE_PASSWORD": password}
    command = [sys.executable, "-m", "flows", "serve", "champion", "--storage", runs.root, "--port", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen([*command, "--queue", str(_QUEUE)], cwd=CHECKOUT, env=env, stderr=output)
    auth = httpx.BasicAuth("anybody", password) if password else None
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", auth=auth, timeout=60, trust_env=False) as client:
            await_that(lambda: server.poll() is not None or answers(client))
            yield client
        server.send_signal(end)
        assert server.wait(60) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        server.kill()
        server.wait()


def answers(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.ConnectError):
        return client.get("/health").status_code == 200
    return False


@pytest.fixture(scope="module")
def runs(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished.copy_to(tmp_path_factory.mktemp("served") / "root")


@pytest.fixture(scope="module")
def client(runs: Finished, tmp_path_factory: pytest.TempPathFactory, integration: None) -> Iterator[httpx.Client]:
    with serving(runs, tmp_path_factory.mktemp("log") / "log", password=_PASSWORD) as client:
        yield client


def png(width: int, height: int) -> bytes:
    sink = io.BytesIO()
    Image.new("1", (width, height)).save(sink, "PNG")
    return sink.getvalue()


def test_each_photo_gets_the_answer_of_predict(runs: Finished, client: httpx.Client) -> None:
    predictions = tables.read_split(runs.champion.predict.target, "test").to_pandas()
    compared = predictions[predictions["file"] != runs.deleted].dropna(subset=["prediction"])
    assert len(compared) > 70
    for row in compared.to_dict("records"):
        response = client.post("/predict", content=(runs.photos / row["file"]).read_bytes())
        answer: dict[str, Any] = response.raise_for_status().json()
        assert answer["class"] == row["class_name"] and answer["probability"] == max(answer["probabilities"].values())
        expected = {name: row[f"{PROBABILITY_PREFIX}{name}"] for name in answer["probabilities"]}
        assert np.allclose(list(answer["probabilities"].values()), list(expected.values()), rtol=0, atol=1e-5)
        assert answer["distance"] == pytest.approx(row["distance"], abs=2e-4)
        assert answer["checkpoint"] == named(runs, champion=True)
    black, stage = png(30, 30), runs.champion.predict
    assert stage.embeddings
    known, cpu = embedding_rows.known_directions(stage.embeddings), torch.device("cpu")
    inference = Inference(stage.checkpoint, threads=1, device=cpu, known=known)
    expected_distance = inference.predictions(inference.model.prepare([black]).numpy())[0, -1]
    distance = client.post("/predict", content=black).json()["distance"]
    assert 0.01 < distance == pytest.approx(expected_distance, abs=2e-4), "no such image was in the training"


def named(runs: Finished, *, champion: bool) -> dict[str, str]:
    checkpoint = (runs.champion if champion else runs.plan).train.target
    return {"name": checkpoint.name, "digest": manifest.load(checkpoint).digest}


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        (b"<html>", 422, "the image cannot be used: not an image in a supported format"),
        (b"", 422, "the image cannot be used: empty file"),
        (png(20_000, 6_000), 422, "20,000 x 6,000 pixels, more than max_megapixels="),
        (bytes(20_000_001), 413, "the image has more than 20,000,000 bytes; send a smaller one"),
    ],
)
def test_what_is_no_image_within_the_limits_is_refused(
    client: httpx.Client, content: bytes, status: int, says: str
) -> None:
    response = client.post("/predict", content=content)
    assert response.status_code == status and says in response.json()["detail"]


def test_without_the_password_only_probes_get_an_answer(client: httpx.Client) -> None:
    photo, wrong = png(30, 30), httpx.BasicAuth("anybody", "another")
    odd: list[dict[str, Any]] = [{"headers": {"Authorization": word}} for word in ("Basic é".encode(), "Bearer x", "")]
    for request in ({"auth": wrong}, *({"auth": httpx.Auth()} | headers for headers in odd)):
        refused = client.post("/predict", content=photo, **request)
        assert refused.status_code == 401 and refused.headers["WWW-Authenticate"] == "Basic"
        assert client.get("/metrics", **request).status_code == 401
        assert client.get("/health", **request).json()["status"] == "ok"


def test_requests_above_the_queue_get_503_and_those_in_it_an_answer(client: httpx.Client) -> None:
    photo, word = png(30, 30), base64.b64encode(f"anybody:{_PASSWORD}".encode()).decode()
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {word}\r\n"
    head += f"Content-Length: {len(photo)}\r\nExpect: 100-continue\r\n\r\n"
    with contextlib.ExitStack() as stack:
        queued = [socket.create_connection(("127.0.0.1", client.base_url.port), 60) for _ in range(_QUEUE)]
        for connection in map(stack.enter_context, queued):
            connection.sendall(head.encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 100 "), "it has a place, and is asked for its image"
        refused = client.post("/predict", content=photo)
        for connection in queued:
            connection.sendall(photo)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert refused.status_code == 503 and refused.headers["Retry-After"] == "1"
    assert refused.json()["detail"] == f"{_QUEUE} requests are waiting already"
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    samples = families["data_to_model_request_seconds"].samples
    by_status = {one.labels["status"]: one.value for one in samples if one.name.endswith("_count")}
    assert by_status["503"] == 1 and by_status["200"] > _QUEUE


@pytest.mark.usefixtures("integration")
def test_promotion_and_rollback_arrive_without_a_failed_request(finished: Finished, tmp_path: Path) -> None:
    runs = finished.copy_to(tmp_path / "root")
    name, root, prepared = runs.plan.registered_model, runs.root, Path(runs.plan.preprocess.target)
    photo = next(iter(sorted((runs.photos / "test").rglob("*.jpg")))).read_bytes()
    with serving(runs, tmp_path / "log", end=signal.SIGINT) as client:

        def reaches(*, champion: bool, status: str = "ok") -> None:
            expected = named(runs, champion=champion)

            def is_there() -> bool:
                health = client.get("/health").json()
                return bool(health["checkpoint"] == expected and health["status"] == status)

            await_that(is_there, limit_s=120)

        async def ask(stop: asyncio.Event) -> list[int | str]:
            """Send so many requests a second, whatever becomes of the earlier ones; return what became of them."""

            async def one() -> int | str:
                try:
                    return (await many.post("/predict", content=photo)).status_code
                except httpx.HTTPError as error:
                    return repr(error)

            tasks = list[asyncio.Task[int | str]]()
            async with httpx.AsyncClient(base_url=client.base_url, timeout=60, trust_env=False) as many:
                while not stop.is_set():
                    tasks.append(asyncio.create_task(one()))
                    await asyncio.sleep(1 / _A_SECOND)
                return list(await asyncio.gather(*tasks))

        def changes() -> None:
            reaches(champion=True)
            champions.promote(root, runs.plan.train.target, name=name)
            reaches(champion=False)
            champions.rollback(root, name)
            reaches(champion=True)

        async def both() -> list[int | str]:
            stop = asyncio.Event()
            asking = asyncio.create_task(ask(stop))
            await asyncio.to_thread(changes)
            stop.set()
            return await asking

        outcomes = asyncio.run(both())
        assert len(outcomes) > _A_SECOND and set(outcomes) == {200}
        assert client.get("/health", headers={"Host": "evil.example"}).status_code == 400, "without a password"

        (exported,) = (
            root.child("exports").child(one.name) for one in Path(root, "exports").iterdir() if is_of(one, runs)
        )
        Path(exported).rename(tmp_path / "export")
        prepared.rename(tmp_path / "prepared")
        champions.promote(root, runs.plan.train.target, name=name)
        reaches(champion=True, status="stale")
        assert "cannot be proven" in client.get("/health").json()["problem"]
        assert client.post("/predict", content=photo).json()["checkpoint"] == named(runs, champion=True)
        assert "data_to_model_stale 1.0" in client.get("/metrics").text
        champions.rollback(root, name)
        reaches(champion=True)
        (tmp_path / "prepared").rename(prepared)
        champions.promote(root, runs.plan.train.target, name=name)
        reaches(champion=False)


def is_of(export: Path, runs: Finished) -> bool:
    """Whether an export is that of the model that was not promoted."""
    return runs.plan.train.target.name in (export / manifest.NAME).read_text()
