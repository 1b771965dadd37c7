"""A Ray cluster of two nodes on this machine, each with a core of its own, one of which can die."""

import contextlib
import json
import os
import secrets
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.cluster.capacity import nodes_of
from tasks.cluster.child import Child
from tasks.cluster.local_ray import await_ray, start_ray
from tests.operated import free_port
from tests.runs import await_that, processes_with

_CPUS = 3
"""That each node counts: a worker takes all but one, so that two workers need two nodes."""
_MARK = "TEST_NODE"
_AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
_APART = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"']
"""What gives a command a disk of its own at the folder that comes next."""


class TwoNodes:
    """A head that takes jobs, and one more node at a time.

    `apart` is a folder that both have and do not share, as two machines do not share their disks.
    """

    def __init__(self, env: Mapping[str, str], *, apart: Path | None = None) -> None:
        self._apart = [*_APART, str(apart)] if apart else []
        self._env = dict(env) | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self._port = free_port()
        options = [f"--port={self._port}", f"--num-cpus={_CPUS}"]
        self._head, self.address, self._folder = start_ray(self._env, *options, prefix=_on_core(0))
        self._nodes: list[tuple[Child, str]] = []

    def begin(self) -> None:
        """Return once both nodes are there."""
        os.environ.update({name: self._env[name] for name in _AUTH})
        await_ray(self._head, self.address)
        await_that(lambda: nodes_of(self.address), limit_s=60, interval_s=0.5)  # the dashboard answers before it is one
        self.add_a_node()

    @property
    def env(self) -> dict[str, str]:
        """What sends a run to this cluster."""
        return {name: self._env[name] for name in _AUTH} | {"RAY_ADDRESS": self.address}

    def add_a_node(self) -> None:
        """Add a node, and return once it has joined."""
        mark, before = uuid.uuid4().hex, len(nodes_of(self.address))
        command = [*self._apart, *_on_core(1), sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += [f"--address=127.0.0.1:{self._port}", f"--num-cpus={_CPUS}", f"--object-store-memory={2**28}"]
        command += ["--dashboard-agent-listen-port=0", "--disable-usage-stats"]
        self._nodes.append((Child(command, env={**self._env, _MARK: mark, "TMPDIR": self._folder}), mark))
        await_that(lambda: len(nodes_of(self.address)) > before, limit_s=60, interval_s=0.5)

    def kill_a_node(self, kill: Callable[[int, str], object]) -> None:
        """`kill` every process of the node that was added last, each given with its command line."""
        before = len(nodes_of(self.address))
        for pid, command in processes_with(f"{_MARK}={self._nodes[-1][1]}").items():
            kill(pid, command)
        await_that(lambda: len(nodes_of(self.address)) < before, limit_s=60, interval_s=0.5)

    def jobs(self) -> list[str]:
        """The ids of all jobs that were ever submitted."""
        return [str(job["submission_id"]) for job in self._ask("/api/jobs/")]

    def state(self, kind: str) -> list[dict[str, Any]]:
        """All `actors` or `tasks` that the cluster remembers, as Ray's state API tells of them."""
        listed: list[dict[str, Any]] = self._ask(f"/api/v0/{kind}?limit=10000")["data"]["result"]["result"]
        return listed

    def used_cpus(self) -> float:
        """How many CPUs of the cluster are held."""
        status = self._ask("/api/cluster_status")["data"]["clusterStatus"]
        return float(status["loadMetricsReport"]["usage"]["CPU"][0])

    def _ask(self, path: str) -> Any:
        request = urllib.request.Request(self.address + path)
        request.add_header("Authorization", f"Bearer {self._env['RAY_AUTH_TOKEN']}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def end(self) -> None:
        """End every node."""
        for node, _ in self._nodes:
            node.end()
        self._head.end()
        for name in _AUTH:
            os.environ.pop(name, None)


@contextlib.contextmanager
def two_nodes(env: Mapping[str, str], *, apart: Path | None = None) -> Iterator[TwoNodes]:
    """A cluster for as long as the block lasts."""
    cluster = TwoNodes(env, apart=apart)
    try:
        cluster.begin()
        yield cluster
    finally:
        cluster.end()


def _on_core(number: int) -> list[str]:
    """What makes a command use one core alone, as if the machine had no other."""
    return ["taskset", "-c", str(number % (os.cpu_count() or 1))]
