"""A Ray cluster of two nodes on this machine, each with a core of its own, one of which dies."""

import contextlib
import json
import os
import secrets
import signal
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.capacity import nodes_of
from tasks.child import Child
from tasks.cluster import await_ray, start_ray
from tests.operated import free_port
from tests.runs import await_that, processes_with

if TYPE_CHECKING:
    from tests.faults.case import Case

_CPUS = 3
"""That each node counts: a worker takes all but one, so that two workers need two nodes."""
_MARK = "FAULTS_NODE"


class TwoNodes:
    """A head that takes jobs, and one more node at a time."""

    def __init__(self, case: "Case") -> None:
        self._case = case
        self._env = os.environ | case.lab.environment(case.root)
        self._env |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "PIPELINE_STRIKE": case.lab.plan(None),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self._port = free_port()
        options = [f"--port={self._port}", f"--num-cpus={_CPUS}"]
        self._head, self.address, self._folder = start_ray(self._env, *options, prefix=_on_core(0))
        self._nodes: list[tuple[Child, str]] = []

    def begin(self) -> None:
        """Return once both nodes are there; the case's runs then use them."""
        names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
        os.environ.update({name: self._env[name] for name in names})
        await_ray(self._head, self.address)
        self.add_a_node()
        self._case.env = {name: self._env[name] for name in names} | {"RAY_ADDRESS": self.address}

    def add_a_node(self) -> None:
        """Add a node, and return once it has joined."""
        mark, before = uuid.uuid4().hex, len(nodes_of(self.address))
        command = [*_on_core(1), sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += [f"--address=127.0.0.1:{self._port}", f"--num-cpus={_CPUS}", f"--object-store-memory={2**28}"]
        command += ["--dashboard-agent-listen-port=0", "--disable-usage-stats"]
        self._nodes.append((Child(command, env={**self._env, _MARK: mark, "TMPDIR": self._folder}), mark))
        await_that(lambda: len(nodes_of(self.address)) > before, limit_s=60, interval_s=0.5)

    def kill_a_node(self) -> None:
        """SIGKILL every process of the node that was added last."""
        before = len(nodes_of(self.address))
        for pid, command in processes_with(f"{_MARK}={self._nodes[-1][1]}").items():
            self._case.strike(pid, signal.SIGKILL, what=f"node: {command[:40]}")
        await_that(lambda: len(nodes_of(self.address)) < before, limit_s=60, interval_s=0.5)

    def jobs(self) -> list[str]:
        """The ids of all jobs that were ever submitted."""
        return [str(job["submission_id"]) for job in self._ask("/api/jobs/")]

    def await_free(self) -> None:
        """Return once no CPU of the cluster is held any more."""

        def used() -> float:
            status = self._ask("/api/cluster_status")["data"]["clusterStatus"]
            return float(status["loadMetricsReport"]["usage"]["CPU"][0])

        self._case.until(lambda: used() == 0, "no CPU was held", interval_s=1, limit_s=60)

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
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
            os.environ.pop(name, None)


@contextlib.contextmanager
def two_nodes(case: "Case") -> Iterator[TwoNodes]:
    """A cluster that the case's runs use for as long as the block lasts; in the end nobody holds any of it."""
    cluster = TwoNodes(case)
    try:
        cluster.begin()
        yield cluster
        cluster.await_free()
    finally:
        cluster.end()


def _on_core(number: int) -> list[str]:
    """What makes a command use one core alone, as if the machine had no other."""
    return ["taskset", "-c", str(number % (os.cpu_count() or 1))]
