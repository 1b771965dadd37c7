"""Ray clusters on this machine: of two nodes, one of which can die, and one that grows from nothing and shrinks."""

import contextlib
import json
import os
import secrets
import signal
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tasks.resources.capacity import nodes_of
from tasks.runners.child import Child
from tasks.runners.local_runner import start_ray
from tests.prefect_system import free_port
from tests.runs import await_that, kill_all_with, processes_with

_CPUS = 3
"""That each node counts: a worker takes all but one, so that two workers need two nodes."""
_LIMIT_S = 600
_MARK = "TEST_NODE"
_AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
_APART = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"']
"""What gives a command a disk of its own at the folder that comes next."""


class _Cluster:
    """A head that takes jobs; a context that ends every node of it."""

    def __init__(self, env: Mapping[str, str], *options: str, port: int, prefix: Sequence[str] = ()) -> None:
        self._env = dict(env) | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self._port = port
        self._head = start_ray(self._env, *options, port=port, prefix=prefix, has_dashboard=True)
        self.address = self._head.dashboard

    @property
    def env(self) -> dict[str, str]:
        """What sends a run to this cluster."""
        return {name: self._env[name] for name in _AUTH} | {"RAY_ADDRESS": self.address}

    def __enter__(self) -> Self:
        os.environ.update({name: self._env[name] for name in _AUTH})
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        self._head.wait()
        nodes(self.address)

    def __exit__(self, *error: object) -> None:
        self._head.child.end()
        for name in _AUTH:
            os.environ.pop(name, None)


class TwoNodes(_Cluster):
    """A head that takes jobs, and one more node at a time.

    `apart` is a folder that both have and do not share, as two machines do not share their disks.
    """

    def __init__(self, env: Mapping[str, str], *, apart: Path | None = None) -> None:
        super().__init__(env, f"--num-cpus={_CPUS}", port=free_port(), prefix=_on_core(0))
        self._apart = [*_APART, str(apart)] if apart else []
        self._nodes: list[tuple[Child, str]] = []

    def _begin(self) -> None:
        super()._begin()
        self.add_a_node()

    def __exit__(self, *error: object) -> None:
        for node, _ in self._nodes:
            node.end()
        super().__exit__()

    def add_a_node(self) -> None:
        """Add a node, and return once it has joined."""
        mark, before = uuid.uuid4().hex, len(nodes(self.address))
        command = [*self._apart, *_on_core(1), sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += [f"--address=127.0.0.1:{self._port}", f"--num-cpus={_CPUS}", f"--object-store-memory={2**28}"]
        command += ["--dashboard-agent-listen-port=0", "--disable-usage-stats"]
        self._nodes.append((Child(command, env={**self._env, _MARK: mark, "TMPDIR": self._head.folder}), mark))
        await_that(lambda: len(nodes(self.address)) > before, limit_s=60, interval_s=0.5)

    def kill_a_node(self, kill: Callable[[int, str], object]) -> None:
        """`kill` every process of the node that was added last, each given with its command line."""
        before = len(nodes(self.address))
        for pid, command in processes_with(f"{_MARK}={self._nodes[-1][1]}").items():
            with contextlib.suppress(ProcessLookupError):  # Ray ends some of them once another has died
                kill(pid, command)
        await_that(lambda: len(nodes(self.address)) < before, limit_s=60, interval_s=0.5)

    def used_cpus(self) -> float:
        """How many CPUs of the cluster are held."""
        status = _ask(self.env, "/api/cluster_status")["data"]["clusterStatus"]
        return float(status["loadMetricsReport"]["usage"]["CPU"][0])


class Head:
    """A cluster of one node, which can be lost and come back with the same ports; Ray starts in `start_folder`."""

    def __init__(self, start_folder: Path) -> None:
        self._start_folder, self._mark = start_folder, uuid.uuid4().hex
        self._ports = free_port(), free_port()
        self.address = f"http://127.0.0.1:{self._ports[1]}"
        self.env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_ADDRESS": self.address}
        self.come_back()

    def come_back(self) -> None:
        """Start Ray; the nodes of a cluster have no `PYTHONPATH` of ours."""
        folder = tempfile.mkdtemp(prefix="head-", dir="/tmp")
        command = ["env", "-u", "PYTHONPATH", f"--chdir={self._start_folder}", sys.executable, "-m"]
        command += ["ray.scripts.scripts", "start", "--head", "--block", f"--temp-dir={folder}/ray"]
        command += [f"--port={self._ports[0]}", f"--dashboard-port={self._ports[1]}", "--num-cpus=4"]
        command += ["--dashboard-agent-listen-port=0", f"--object-store-memory={2**28}", "--disable-usage-stats"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = dict(os.environ) | self.env | {"PATH": path, _MARK: self._mark}
        env.pop("RAY_ADDRESS")
        self._child = Child(command, env=env, remove=folder)

    def signal_workers(self, signal_: signal.Signals) -> None:
        """Send a signal to each training worker, such as the one that stops it for a while."""
        processes = processes_with(f"{_MARK}={self._mark}")
        workers = [pid for pid, command in processes.items() if "RayTrainWorker" in command]
        assert workers
        for pid in workers:
            os.kill(pid, signal_)

    def be_lost(self) -> None:
        """Kill every process of the cluster."""
        kill_all_with(f"{_MARK}={self._mark}")
        self._child.end()


class Growing(_Cluster):
    """A head without CPUs and a real autoscaler, whose nodes are processes of this machine.

    As `ray.cluster_utils.AutoscalingCluster`, which lacks a file in Ray's wheels and ends all Rays of the machine.
    `node_types` are the resources and the largest number of each type of node.
    """

    def __init__(self, env: Mapping[str, str], folder: Path, *, node_types: Mapping[str, tuple[dict[str, float], int]]):
        port, file = free_port(), folder / "autoscaling.yaml"
        file.write_text(json.dumps(_autoscaling(f"127.0.0.1:{port}", node_types)))
        env = dict(env) | {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        super().__init__(env, "--num-cpus=0", f"--autoscaling-config={file}", port=port)


def _autoscaling(gcs_address: str, node_types: Mapping[str, tuple[dict[str, float], int]]) -> dict[str, Any]:
    """The configuration of Ray's autoscaler for nodes on one machine; a node goes after 45 idle seconds.

    Nodes of one machine share Ray's folder: one that goes deletes the code of a job's driver that waits on the head.
    """
    types = {
        name: {"resources": resources, "max_workers": most, "node_config": {}}
        for name, (resources, most) in node_types.items()
    }
    none = {"resources": {"CPU": 0}, "max_workers": 0, "node_config": {}}
    commands = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    no_lists = ("cluster_synced_files", "rsync_exclude", "rsync_filter", *(f"{name}_commands" for name in commands))
    return {
        "cluster_name": "growing",
        "max_workers": 8,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": gcs_address,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {"ray.head.default": none} | types,
        "head_node_type": "ray.head.default",
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.75,
        "file_mounts_sync_continuously": False,
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in no_lists},
    }


def jobs(env: Mapping[str, str]) -> dict[str, str]:
    """Status of each job that was ever submitted, by its id, on the cluster that a run with `env` uses."""
    return {job["submission_id"]: job["status"] for job in _ask(env, "/api/jobs/")}


def _ask(env: Mapping[str, str], path: str) -> Any:
    request = urllib.request.Request(env["RAY_ADDRESS"] + path)
    request.add_header("Authorization", f"Bearer {env['RAY_AUTH_TOKEN']}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def nodes(address: str) -> list[dict[str, float]]:
    """The resources of each live node, as soon as the dashboard lists one; a slow dashboard is asked again."""

    def told() -> list[dict[str, float]]:
        with contextlib.suppress(ValueError):
            return nodes_of(address)
        return []

    return await_that(told, limit_s=60, interval_s=0.5)


def _on_core(number: int) -> list[str]:
    """What makes a command use one core alone, as if the machine had no other."""
    return ["taskset", "-c", str(number % (os.cpu_count() or 1))]
