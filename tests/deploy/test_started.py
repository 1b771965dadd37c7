"""What compose.yaml starts works together: Postgres, S3, server, deployments and worker end runs.

Commands and variables are those of the file. Replaced are hosts and ports by loopback ones, and the fixed folders of
the images by folders of the test. The worker's checkout is not where the deployments were registered.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from storage import registry
from storage.uri import Root
from tasks.runners.child import Child
from tests.deploy import composed
from tests.image_folder import encoded, write_folder
from tests.prefect_system import Server, free_port
from tests.runs import CHECKOUT, await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_PROGRAMS = Path(sys.executable).parent
_OF_HOST = ("LANG", "TMPDIR", "OMP_WAIT_POLICY")
"""Variables that services take over from this process."""
_S3_PORTS = ("master.port", "volume.port", "filer.port")
_SMALL = {"epochs": 1, "model": "small-cnn", "minimum": 0}
_SMALL_PHOTOS = {"epochs": 1, "model": "small-cnn", "image_size": 16, "max_quarantined": 0.5}
"""Trainings of seconds."""


class Composed(Server):
    """The services of compose.yaml as processes of this machine."""

    def __init__(self, folder: Path, checkout: Path) -> None:
        env = composed.example(empty="s3cret") | {"PREFECT_PORT": str(free_port()), "S3_PORT": str(free_port())}
        super().__init__(int(env["PREFECT_PORT"]), auth=f"admin:{env['PREFECT_PASSWORD']}")
        self._services, self._folder, self.checkout, self._env = composed.services(env), folder, checkout, env
        self._postgres = ""

    def environment(self, name: str) -> dict[str, str]:
        """The variables of service `name`, on top of those that its image sets."""
        scratch = self._folder / "scratch" / name
        scratch.mkdir(parents=True, exist_ok=True)
        of_image = {
            variable: value.replace("/tmp", str(scratch)) for variable, value in composed.image_variables().items()
        }
        of_image |= {"PATH": f"{_PROGRAMS}:{os.environ['PATH']}", "PIPELINE_CHECKOUT": str(self.checkout)}
        named = self._services[name]["environment"]
        of_host = {variable: os.environ[variable] for variable in _OF_HOST if variable in os.environ}
        return of_host | of_image | {variable: self._here(value) for variable, value in named.items() if value}

    def command(self, name: str) -> list[str]:
        """The command of service `name`."""
        return [self._here(word) for word in self._services[name]["command"]]

    def run(self, name: str) -> None:
        """Service `name`, which ends by itself, in the working directory of its image."""
        words = self.command(name)
        answer = subprocess.run(
            [_PROGRAMS / words[0], *words[1:]],
            env=self.environment(name),
            cwd=self.checkout,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Service `name`, from the moment that its healthcheck succeeds until the block ends."""
        words = self.command(name)
        if name == "s3":
            words = ["weed", "-logtostderr=true", words[0], *self._added_to_s3(), *words[1:]]
        child = Child([str(_PROGRAMS / words[0]), *words[1:]], env=self.environment(name))
        try:
            if "healthcheck" in self._services[name]:
                await_that(lambda: self._is_healthy(name) or not child.running, limit_s=180, interval_s=0.5)
            assert child.running, child.output()
            yield
        finally:
            child.end()

    @contextlib.contextmanager
    def running_postgres(self) -> Iterator[None]:
        """Service `postgres`, until the block ends."""
        env = self._services["postgres"]["environment"]
        user, password, database = (env[f"POSTGRES_{name}"] for name in ("USER", "PASSWORD", "DB"))
        with _postgres(user=user, password=password, database=database) as self._postgres:
            yield

    def _added_to_s3(self) -> list[str]:
        """What the entry point of its image adds, and ports that are free here."""
        folder = self._folder / "data"
        folder.mkdir()
        ports = [f"-{name}{kind}={free_port()}" for name in (*_S3_PORTS, "s3.port") for kind in ("", ".grpc")]
        kept = [port for port in ports if not port.startswith("-s3.port=")]
        return [f"-dir={folder}", "-volume.max=0", "-master.volumeSizeLimitMB=64", "-volume.minFreeSpace=64MiB", *kept]

    def _is_healthy(self, name: str) -> bool:
        test = [self._here(word) for word in self._services[name]["healthcheck"]["test"][1:]]
        return subprocess.run(test, env=self.environment(name), capture_output=True).returncode == 0

    def _here(self, text: str) -> str:
        """`text` of compose.yaml with hosts and ports of this machine."""
        text = text.replace("@postgres/", f"@{self._postgres}/")
        for name, port in (("server", "PREFECT_PORT"), ("s3", "S3_PORT")):
            inside = {"server": "4200", "s3": "8333"}[name]
            for host in (name, "127.0.0.1"):
                text = text.replace(f"{host}:{inside}", f"127.0.0.1:{self._env[port]}")
            text = self._env[port] if text == inside else text.replace(f"port={inside}", f"port={self._env[port]}")
        return text.replace("-ip=s3", "-ip=127.0.0.1").replace("0.0.0.0", "127.0.0.1")


@contextlib.contextmanager
def _postgres(*, user: str, password: str, database: str) -> Iterator[str]:
    """A server on loopback with one database; its HOST:PORT. Skips the test if Postgres is not installed."""
    programs = _programs()
    folder, port = Path(tempfile.mkdtemp(prefix="postgres-")), free_port()  # its user may not enter pytest's folders
    secret = folder / "password"
    secret.write_text(password)
    as_user: list[str] = []
    if os.geteuid() == 0:  # Postgres refuses to run as root; the package creates this user
        as_user = ["runuser", "-u", "postgres", "--"]
        for path in (folder, secret):
            shutil.chown(path, "postgres")
    create = [str(programs / "initdb"), "-U", user, "--pwfile", str(secret), "-A", "scram-sha-256", f"{folder}/data"]
    subprocess.run([*as_user, *create], check=True, capture_output=True, cwd="/")
    options = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F"]  # -F: no fsync
    server = Child([*as_user, str(programs / "postgres"), "-D", str(folder / "data"), *options], env=os.environ)
    try:
        ready = [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
        await_that(lambda: subprocess.run(ready, capture_output=True).returncode == 0, limit_s=60)
        words = [str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", user, database]
        subprocess.run(words, env=os.environ | {"PGPASSWORD": password}, check=True, capture_output=True)
        yield f"127.0.0.1:{port}"
    finally:
        server.end()
        shutil.rmtree(folder)


def _programs() -> Path:
    """The folder of Postgres' programs, of the newest version that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        reason = "Postgres is not installed: apt-get install --no-install-recommends postgresql"
        if os.environ.get("REQUIRE_POSTGRES"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found[-1].parent


def _add_scheduled(checkout: Path, photos: Path) -> None:
    """Put the deployment of docs/retrain.md into deployments.yaml twice, each minute by cron and by interval."""
    (block,) = re.findall(r"```yaml\n(deployments:\n.*?)```", (CHECKOUT / "docs" / "retrain.md").read_text(), re.DOTALL)
    (by_cron,) = yaml.safe_load(block)["deployments"]
    by_cron["name"] = "by-cron"
    by_cron["parameters"] = {**by_cron["parameters"], "data": str(photos), "settings": _SMALL_PHOTOS, "workers": 0}
    by_cron["parameters"]["recipe"] = "images-resnet18"  # the default needs weights from the network
    by_cron["schedules"][0]["cron"] = "* * * * *"
    by_interval = deepcopy(by_cron)
    by_interval |= {"name": "by-interval", "schedules": [{"slug": "often", "interval": 60}]}
    (checkout / "deployments.yaml").write_text(yaml.safe_dump({"deployments": [by_cron, by_interval]}))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """All services of compose.yaml; the folder of the image was moved after `deploy`."""
    folder = tmp_path_factory.mktemp("composed")
    services = Composed(folder, composed.assemble_image(folder / "image" / "pipeline"))
    _add_scheduled(services.checkout, write_folder(folder / "photos"))
    with services.running_postgres(), services.running("s3"), services.running("server"):
        services.run("bucket")
        services.run("deploy")
        services.checkout = services.checkout.rename(folder / "elsewhere")
        with services.running("watch"), services.running("worker"):
            yield services


def test_a_run_on_the_sample_ends_and_its_champion_is_in_the_bucket(
    started: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert started.deployment("mnist/train")["schedules"][0]["active"]
    run = started.start("mnist/smoke", settings=_SMALL)
    assert started.await_end(run) == ["Promoted"], started.log(run)
    worker = started.environment("worker")
    for name in ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, worker[name])
    assert registry.champion(Root(worker["PIPELINE_STORAGE"]), "mnist-sample") is not None
    assert {path.name for path in started.checkout.iterdir()} >= {"flows", "tasks", "storage"}
    assert not (started.checkout / "data").exists()


def test_on_postgres_schedules_start_runs_that_train_once_and_again_when_a_file_was_added(started: Composed) -> None:
    photos = started.checkout.parent / "photos"
    runs = await_that(lambda: _ended(started), limit_s=300, interval_s=1)
    states = {name: {run["state_name"] for run in of_name} for name, of_name in runs.items()}
    logs = {run["id"]: started.log(run["id"])[-5:] for of_name in runs.values() for run in of_name}
    assert set().union(*states.values()) <= {"Promoted", "Rejected", "Unchanged", "NothingNew"}, logs
    assert _completed(started), "neither trained a model"
    added = datetime.now(UTC).isoformat()
    (photos / "train" / "pears" / "late.png").write_bytes(encoded(5000, 0))
    await_that(lambda: any(run["start_time"] > added for run in _completed(started)), limit_s=300)
    artifacts = [str(started.artifacts(run["id"])) for run in _completed(started)]
    assert all(re.search(r"'photos-summary': .*images-small-cnn", shown) for shown in artifacts)
    for name in runs:
        deployment = started.deployment(f"images/{name}")
        for schedule in deployment["schedules"]:
            path = f"/deployments/{deployment['id']}/schedules/{schedule['id']}"
            started.api("PATCH", path, {"active": False})


def _ended(server: Server) -> dict[str, list[dict[str, Any]]]:
    """The ended runs of the two deployments, once both have one; nobody but a schedule started them."""
    ended = {}
    for name in ("by-cron", "by-interval"):
        wanted = {"deployments": {"name": {"any_": [name]}}, "sort": "START_TIME_ASC"}
        runs = server.api("POST", "/flow_runs/filter", wanted)
        assert all(run["created_by"]["type"] == "SCHEDULE" for run in runs)
        ended[name] = [run for run in runs if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED")]
    return ended if all(ended.values()) else {}


def _completed(server: Server) -> list[dict[str, Any]]:
    """The runs that trained."""
    return [run for runs in _ended(server).values() for run in runs if run["state_name"] in ("Promoted", "Rejected")]


def test_the_server_shows_its_ui_from_scratch_space(started: Composed) -> None:
    folder = Path(started.environment("server")["PREFECT_SERVER_UI_STATIC_DIRECTORY"])
    assert folder.is_relative_to(started.checkout.parent / "scratch") and list(folder.glob("*/index.html"))
    with urllib.request.urlopen(f"http://127.0.0.1:{started.port}/", timeout=30) as page:
        assert b"<html" in page.read()


def test_the_server_answers_nobody_without_the_password(started: Composed) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        Server(started.port).api("POST", "/flows/filter", {})
    assert refused.value.code == 401


def test_a_server_takes_the_kubernetes_work_pool_and_refuses_a_wrong_variable(started: Composed) -> None:
    template = composed.DEPLOY / "kubernetes-work-pool.json"
    words = ["work-pool", "create", "--type", "kubernetes", "--base-job-template", str(template), "kubernetes"]
    env = started.environment("deploy")
    subprocess.run([_PROGRAMS / "prefect", *words], env=env, cwd=started.checkout, check=True, capture_output=True)
    pool = started.api("GET", "/work_pools/kubernetes")
    assert pool["base_job_template"] == json.loads(template.read_text())
    given: dict[str, Any] = {"name": "in-kubernetes", "flow_id": started.deployment("mnist/smoke")["flow_id"]}
    given |= {"work_pool_name": "kubernetes", "enforce_parameter_schema": False}
    started.api("POST", "/deployments/", {**given, "job_variables": {"storage": "s3://pipeline/other"}})
    with pytest.raises(urllib.error.HTTPError) as refused:
        started.api("POST", "/deployments/", {**given, "job_variables": {"finished_job_ttl": "soon"}})
    assert b"finished_job_ttl" in refused.value.read()
