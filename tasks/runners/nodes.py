"""Node checks before a run: versions and access to storage on every node of the cluster, the GPUs of this machine.

`python -m tasks.runners.nodes FOLDER VERSIONS` is the Ray job that asks each node; the run has put a file into FOLDER.
"""

import functools
import importlib
import json
import platform
import shlex
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from storage import files
from storage.producer import producer
from storage.terminal import count
from storage.uri import URI, Root, redact, redact_text
from tasks.jobs import errors, events
from tasks.resources import capacity, devices, machine
from tasks.resources.needs import Needs
from tasks.runners import jobs_api

if TYPE_CHECKING:
    import ray

_NODES = "::nodes "
"""Start of the job's line of JSON: the number of nodes, and the problems of all of them."""
_ASKED = "asked"
"""File that the run puts into the folder, for the nodes to find."""
_LIMIT_S, _NODE_LIMIT_S = 90, 30
"""Timeouts, in seconds: of the whole check, and of the answer of one node."""
_POLL_S = 0.2
"""Seconds between two questions about the job."""
_Versions = Mapping[str, str | None]


def check_nodes(root: Root, needs: Needs) -> str:
    """Check the nodes of the cluster that RAY_ADDRESS names, else this machine; return what they have in common.

    Raises `ValueError` if a node cannot run a task, differs in versions from this process or sees another folder at
    `root`, or if torch cannot use the GPUs of this machine (unless `needs` no GPU).
    """
    address = capacity.cluster_address()
    if not address or needs.workers == 0:
        if needs.device != "cpu" and machine.gpus() and (trouble := devices.trouble_in_child()):
            raise ValueError(f"torch cannot use the GPUs of this machine: {trouble}; or {devices.CPU_ADVICE}")
        return "only this machine"
    number, problems = _answers(address, root)
    if problems:
        raise ValueError(f"RAY_ADDRESS={redact(address)}: " + "; ".join(problems))
    common = ", ".join(f"{title} {version}" for title, version in versions().items() if title != "code")
    return f"{count(number, 'node')} share{'s' * (number == 1)} {root}; {common}"


@functools.cache
def _answers(address: str, root: Root) -> tuple[int, list[str]]:
    """Ask every live node about itself by a short job, once per process; return their number and their problems."""
    folder, where = root.child(f"_probe-{uuid.uuid4().hex}"), f"RAY_ADDRESS={redact(address)}"
    files.put(folder.child(_ASKED), b"asked", mode="create")
    entrypoint = f"exec python -m tasks.runners.nodes {shlex.quote(folder)} {shlex.quote(json.dumps(versions()))}"
    try:
        client = jobs_api.connect(address)
        with jobs_api.job_runtime_env() as runtime_env:
            name = f"nodes-{folder.fingerprint}"
            job = client.submit_job(entrypoint=entrypoint, submission_id=name, runtime_env=runtime_env)
        deadline = time.monotonic() + _LIMIT_S
        while not (status := client.get_job_status(job)).is_terminal() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        log = client.get_job_logs(job)
        if not status.is_terminal():
            client.stop_job(job)
    except Exception as error:
        reason = redact_text(" ".join(str(error).split()))
        raise ValueError(f"{where}: the cluster did not accept a job: {reason}; check its head's logs") from error
    finally:
        files.remove(folder)
    lines = [line for line in log.splitlines() if line.strip()] or ["it printed nothing"]
    for line in lines:
        if _NODES in line:
            answer = json.loads(line.partition(_NODES)[2])
            return answer["nodes"], answer["problems"]
    raise ValueError(
        f"{where}: a job cannot run there ({status}): {lines[-1].strip()}; install requirements.lock in the Python "
        "that runs ray start"
    )


def versions() -> dict[str, str | None]:
    """Return what must be the same on all nodes: Python, Ray, torch (None: not installed) and the digest of the code.

    CPU and GPU builds of a library count as the same version.
    """
    ray, torch = ((producer()[name] or "").partition("+")[0] or None for name in ("ray", "torch"))
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "Ray": ray, "torch": torch, "code": producer()["code"]}


def main() -> None:
    """Print the problems of all live nodes as one marked line of JSON."""
    import ray  # the flow imports this module without Ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    module = importlib.import_module("tasks.runners.nodes")  # workers cannot import `__main__`
    ray.init(logging_level="WARNING")
    look_there = ray.remote(num_cpus=0, max_retries=0)(module.look)
    names = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    tasks = {
        node: look_there.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            sys.argv[1], node, json.loads(sys.argv[2])
        )
        for node in names
    }
    ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=_NODE_LIMIT_S)
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] in names]
    problems = [f"node {names[node]} ({node[:8]}){problem}" for node in alive for problem in _answer(tasks[node])]
    events.write_event(_NODES, nodes=len(alive), problems=problems)


def look(folder: str, node: str, run_versions: _Versions) -> list[str]:
    """Return the problems of this process's `node`; write to `folder` only if the run's file is there."""
    uri, trouble = URI(folder), ""
    s3_advice = "set AWS_ENDPOINT_URL here, which jobs get, or there; ~/.aws/config is not sent"
    advice = s3_advice if uri.is_s3 else "use s3://bucket/prefix or a shared file system"
    try:
        files.read(uri.child(_ASKED))
        files.put(uri.child(node), b"seen", mode="create")
    except FileNotFoundError:
        trouble = f" sees another folder at {uri.parent}; {advice}"
    except OSError as error:
        trouble = f" cannot use {uri.parent}: {redact_text(' '.join(str(error).split()))}; {advice}"
    return [*filter(None, [trouble]), *differences(versions(), run_versions)]


def differences(here: _Versions, of_run: _Versions) -> Iterator[str]:
    """Yield each version `here` that differs from the version of the run's process."""
    for title, version in here.items():
        if version != of_run[title]:
            advice = "install the versions of requirements.lock there"
            if title == "code":
                advice = "start Ray there without a copy of `tasks` or `storage` among Python's paths"
            yield f": {title} {version}, this process: {of_run[title]}; {advice}"


def _answer(task: "ray.ObjectRef") -> list[str]:
    import ray

    try:
        problems: list[str] = ray.get(task, timeout=0.1)  # it was waited for
        return problems
    except Exception as error:
        lines = str(errors.root_cause(error)).strip().splitlines() or [type(error).__name__]
        return [f" could not run a task within {_NODE_LIMIT_S} s: {lines[-1]}"]


if __name__ == "__main__":
    main()
