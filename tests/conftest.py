"""Fixtures for every test: a real S3 server, and a storage root on a disk and on S3."""

import multiprocessing.util
import os
import shutil
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from storage.uri import Root
from tasks.learning import user_code
from tests.runs import SHARED, await_that, prefect_home

if TYPE_CHECKING:
    from tests.finished import Finished
    from tests.prefect_system import PrefectSystem
    from tests.report_page.browser import Browser
    from tests.s3 import Server

_IS_ONE_OF_SEVERAL = "PYTEST_XDIST_WORKER" in os.environ
_LONG_S = 240
"""Seconds that a file of whole runs takes, if it has no limit of its own."""


_TOOLS = ("file", "git", "ldconfig", "lscpu", "mount", "umount", "uname")
"""Programs that end at once: a unit test may start them, or call code that does."""
_started: list[str] = []
"""Commands of the processes that this process started since the last test."""


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and Path(os.fsdecode(arguments[0])).name not in _TOOLS:
        _started.append(str(arguments[1]))


def pytest_configure() -> None:
    sys.addaudithook(_record)
    if _IS_ONE_OF_SEVERAL:  # threads of two processes on the same cores must not wait for each other by spinning
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    else:
        os.environ[SHARED] = tempfile.mkdtemp(prefix="shared-")


def pytest_unconfigure() -> None:
    if not _IS_ONE_OF_SEVERAL:
        shutil.rmtree(os.environ.pop(SHARED), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they need; begin with files that may take longest, at the end one worker would wait."""
    limits = dict.fromkeys((item.path for item in items), 0.0)
    for item in items:
        limit, is_slow = item.get_closest_marker("timeout"), item.get_closest_marker("slow")
        if not is_slow:
            item.add_marker("integration" if _needs_more(item) else "unit")
        is_long = is_slow or item.path.parent == Path(__file__).parent
        limits[item.path] = max(limits[item.path], limit.args[0] if limit else 0, _LONG_S if is_long else 0)
    items.sort(key=lambda item: limits[item.path], reverse=True)


def _needs_more(item: pytest.Item) -> bool:
    """Whether a test needs more than this process: a fixture in its closure requests `integration`."""
    assert isinstance(item, pytest.Function)
    is_on_s3 = hasattr(item, "callspec") and item.callspec.params.get("each_root") == "s3"
    return is_on_s3 or "integration" in item.fixturenames


@pytest.fixture(scope="session")
def integration() -> None:
    """What a test or a fixture requests that starts a process or a server: it marks the test."""


@pytest.fixture(autouse=True)
def within_its_mark(request: pytest.FixtureRequest) -> Iterator[None]:
    """A unit test starts no process."""
    yield
    started, _started[:] = list(_started), []
    if request.node.get_closest_marker("unit"):
        assert not started, f"request the fixture `integration`: the test started {started[0]}"


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of this pytest worker's tests take turns among themselves, and wait for nobody else's."""
    tmp_path_factory.getbasetemp()  # stays where it is: another user's process may not enter a private folder
    multiprocessing.util.get_temp_dir()  # too: it is removed when this process ends
    with tempfile.TemporaryDirectory(prefix="own-") as folder, pytest.MonkeyPatch.context() as patch:
        os.chmod(folder, 0o755)
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_flush() -> Iterator[None]:
    """Files need not reach the disk: nothing here takes power away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True)
def no_listed_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of code that a test loads is not listed for the tests after it."""
    monkeypatch.setenv(user_code.FILES, "")


@pytest.fixture(scope="session")
def prefect_process(tmp_path_factory: pytest.TempPathFactory, integration: None) -> Iterator[dict[Any, Any]]:
    """The settings of a Prefect server that runs until the session ends; its thread alone has them in force."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

    from flows.server.temporary_server import own_server

    home = tmp_path_factory.mktemp("prefect") / "home"
    prefect_home(home)
    settings: dict[Any, Any] = {}
    ended = threading.Event()

    def serve() -> None:
        with own_server():
            settings.update({setting: setting.value() for setting in (PREFECT_API_URL, PREFECT_API_AUTH_STRING)})
            ended.wait()

    with ThreadPoolExecutor(1) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PREFECT_HOME", str(home))
            patch.setenv("PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL", "0.1")  # tests wait for events
            patch.delenv("PREFECT_API_URL", raising=False)
            server = pool.submit(serve)
            await_that(lambda: len(settings) == 2 or server.done())
        if server.done():
            server.result()  # raises why it did not start
        yield settings
        ended.set()


@pytest.fixture(scope="module")
def prefect_server(prefect_process: dict[Any, Any]) -> Iterator[None]:
    """A Prefect server, the same for all modules, for the flows that a module's tests call in this process."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker
    from prefect.settings import temporary_settings

    with pytest.MonkeyPatch.context() as patch, temporary_settings(prefect_process):
        patch.delenv("PREFECT_API_URL", raising=False)
        yield
        for worker in (APILogWorker, EventsWorker):
            worker.drain_all(timeout=10)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory, integration: None) -> Iterator["Server"]:
    """A running S3 server with one bucket; the `AWS_*` variables point to it until the session ends."""
    from tests.s3 import serve  # the tests of GPUs run where S3's packages are missing

    with serve(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory, integration: None) -> Iterator["Browser"]:
    """A headless Chromium."""
    from tests.report_page.browser import chromium

    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="session")
def finished() -> "Finished":
    """Two finished runs, the same for all tests of the session, which only look at them."""
    from tests.finished import finished_runs

    return finished_runs()


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """An empty storage root of the test's own."""
    return Root(str(tmp_path / "root"))


@pytest.fixture(params=["local", "s3"])
def each_root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """An empty storage root of the test's own, once on a disk and once on S3."""
    if request.param == "local":
        return Root(str(tmp_path / "root"))
    server: Server = request.getfixturevalue("s3")
    return Root(f"s3://{server.bucket}/{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, integration: None) -> Iterator["PrefectSystem"]:
    """A Prefect server in line with prefect.yaml."""
    from tests.prefect_system import PrefectSystem

    server = PrefectSystem(tmp_path_factory.mktemp("prefect-system"))
    try:
        server.deploy()
        yield server
    finally:
        server.end()


@pytest.fixture
def prefect_system(deployed: "PrefectSystem") -> Iterator["PrefectSystem"]:
    """The server `deployed`; a test starts the worker it needs, and finds none, and no run, of another test."""
    yield deployed
    deployed.end_worker()
    deployed.cancel_runs()
