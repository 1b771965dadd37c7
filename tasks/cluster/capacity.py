"""Capacity check before a run: what this machine, or the cluster that RAY_ADDRESS names, can provide."""

import contextlib
import functools
import json
import os
import re
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

from storage import error_policy, files, terminal
from storage.terminal import count
from storage.uri import URI, Root, redact
from tasks.cluster import jobs_api
from tasks.jobs import dashboard
from tasks.jobs.spec import NODE_TYPES
from tasks.resources import devices, machine, scaling

SPARE_CPUS = 3
"""CPUs that a local Ray counts beyond the machine's own: a driver and data tasks run beside the workers."""
_ASK_S = 4
"""Timeout of a request to a cluster's dashboard, and of the wait for its first usable node, in seconds."""
_TYPE_OF_ITS_OWN = re.compile(r"node_?[0-9a-f]{40,}", re.IGNORECASE)
"""Type of a node on a cluster without declared types: Ray's id of the node, whose case the dashboard changes."""
_JOB_S = 60
"""Timeout of the job that asks which nodes a cluster may add, in seconds."""
LEAST_FREE_BYTES = 256_000_000
"""Least free disk for any run, in bytes: a checkpoint of the smallest model beside Ray's own files."""


def check_workers(workers: scaling.Workers, needs: scaling.Needs = scaling.ANY) -> str:
    """Describe the resources for `workers` (None: auto, 0: no Ray); waits at most 25 s, longer on a cluster that grows.

    Raises:
        ValueError: These resources can never be provided, or RAY_ADDRESS or PIPELINE_DASHBOARD is wrong. The message
            says what was asked for and what exists.
    """
    machine.cores_asked(workers)
    address = jobs_api.cluster_address()
    if not address or workers == 0:
        _check_gpus_here(workers, needs)
    if workers == 0:
        return "not used: the work runs in this process"
    dashboard.kind()
    return _of_cluster(address, workers, needs) if address else _of_this_machine(workers, needs)


def _of_cluster(address: str, workers: scaling.Workers, needs: scaling.Needs) -> str:
    nodes, given = _usable_nodes(address), None
    addable: list[scaling.Resources] = []
    if nodes and (needs.device == "cpu" or scaling.num_gpus(*nodes)):  # else GPUs may come
        with contextlib.suppress(ValueError):
            given = scaling.resolve(workers, threads=None, nodes=nodes, needs=needs)
    if given is None:
        addable = _addable(address)
        if not nodes and not addable:
            raise ValueError(
                f"RAY_ADDRESS={redact(address)}: no node of that cluster has any CPUs; add a node, or unset "
                "RAY_ADDRESS to use a local Ray"
            )
        given = scaling.resolve(workers, threads=None, nodes=nodes, addable=addable, needs=needs)
    have = _counted(nodes) + (f" and may add {_counted(addable)}" if addable else "")
    each = f"{'1 GPU and ' if given.use_gpu else ''}{count(given.cpus, 'CPU')} each"
    feeds = _fed(workers, needs, scaling.num_gpus(*nodes) if given.use_gpu else 0)
    return f"{redact(address)}: {have}; {count(given.workers, 'worker')} with {each}{feeds}"


def _fed(workers: scaling.Workers, needs: scaling.Needs, gpus: int) -> str:
    """Describe why fewer workers than `gpus` were chosen; empty if they were asked for, or if each GPU has one."""
    fed = scaling.most_gpus_fed(needs.batch_size)
    if workers is not None or fed >= gpus:
        return ""
    return f"; batch_size={needs.batch_size} keeps only {fed} of {gpus} GPUs busy, use --workers {gpus} for all of them"


def _counted(nodes: Sequence[scaling.Resources]) -> str:
    found = {"node": len(nodes), "CPU": scaling.cpus(nodes), "GPU": scaling.num_gpus(*nodes)}
    return ", ".join(count(number, noun) for noun, number in found.items())


def _of_this_machine(workers: scaling.Workers, needs: scaling.Needs) -> str:
    most = machine.cores() + SPARE_CPUS - 1
    gpus = 0 if needs.device == "cpu" else len(machine.gpus())
    elastic = scaling.limits(workers)
    asked = int(elastic[0 if gpus else 1] if elastic else workers or 1)
    if gpus and asked > gpus:
        raise ValueError(
            f"--workers must be at most the number of GPUs of this machine, {gpus}, got {workers}; for more, set "
            f"RAY_ADDRESS to a cluster, or {devices.CPU_ADVICE}"
        )
    if gpus and not needs.cpus:  # they share the CPUs
        have = f"local, {count(machine.cores(), 'core')}, {count(gpus, 'GPU')}, at most {count(gpus, 'worker')}"
        return have + _fed(workers, needs, gpus)
    most = int(most // (needs.cpus or 1))
    if asked > most:
        each = f"with {count(needs.cpus, 'CPU')} each (cpus_per_worker) " if needs.cpus else ""
        raise ValueError(
            f"--workers {each}must be at most {most} on this machine, got {workers or 1}; for more, set RAY_ADDRESS "
            "to a cluster"
        )
    return f"local, {count(machine.cores(), 'core')}, at most {count(most, 'worker')}"


def _check_gpus_here(workers: scaling.Workers, needs: scaling.Needs) -> None:
    """Raise `ValueError` if `accelerator_type` is set, or if device=cuda and torch finds no GPU here.

    Torch is asked last, since that takes seconds.
    """
    if needs.accelerator_type:
        where, way = ("with --workers 0", "") if workers == 0 else ("without a cluster", ", or set RAY_ADDRESS to one")
        raise ValueError(f"accelerator_type must be empty {where}, got {needs.accelerator_type!r}; omit it{way}")
    if needs.device != "cuda" or machine.gpus() or not (trouble := devices.trouble_in_child()):
        return
    cluster = "" if workers == 0 else "set RAY_ADDRESS to a cluster with GPUs, or "
    raise ValueError(
        f"device=cuda needs a GPU, but none was found on this machine: {trouble}; or {cluster}{devices.CPU_ADVICE}"
    )


def check_disk(root: Root) -> str:
    """Describe the free disk space here (S3 reports none); raise `ValueError` if it is too little for any run."""
    places = [URI(tempfile.gettempdir())] if root.is_s3 else [root, URI(tempfile.gettempdir())]
    for place in places:
        try:
            files.check_space(place, needed=LEAST_FREE_BYTES)
        except error_policy.DiskFull as error:
            raise ValueError(str(error)) from None
    return ", ".join(f"{files.free_bytes(place) / 1e9:.1f} GB free in {place}" for place in places)


def _usable_nodes(address: str) -> list[scaling.Resources]:
    """Wait a while for nodes that can take work: a dashboard that just started answers before its nodes are up."""
    asked = time.monotonic()
    while not (found := scaling.usable(nodes_of(address))) and time.monotonic() - asked < _ASK_S:
        time.sleep(0.2)
    return found


def nodes_of(address: str) -> list[dict[str, float]]:
    """Return the resources of each live node of the cluster, from the dashboard that also takes jobs."""
    try:
        listed = _get(address, "/api/v0/nodes?limit=10000")["result"]["result"]
    except (OSError, ValueError, TypeError, KeyError, HTTPException) as error:
        reason = "RAY_AUTH_TOKEN was not accepted" if getattr(error, "code", 0) in (401, 403) else error
        raise ValueError(
            "RAY_ADDRESS must be the address of a Ray cluster's Jobs API, such as http://head:8265, got "
            f"{redact(address)!r} ({reason}); unset it to use a local Ray"
        ) from None
    return [node["resources_total"] for node in listed if node["state"] == "ALIVE"]


@functools.cache
def _addable(address: str) -> list[scaling.Resources]:
    """Ask a job on the cluster's head which nodes the cluster may add; return none, with a warning, if that fails."""
    if _is_fixed(address):
        return []
    command, name = "exec python -m tasks.jobs.node_types", f"node-types-{uuid.uuid4().hex[:12]}"
    try:
        pairs = jobs_api.ask(address, command, marker=NODE_TYPES, name=name, limit_s=_JOB_S)["addable"]
    except ValueError as error:
        terminal.show(f"WARNING: which nodes may be added is unknown, so only live ones count: {error}", sys.stderr)
        return []
    return [resources for resources, number in pairs for _ in range(number)]


def _is_fixed(address: str) -> bool:
    """Return True if the autoscaler's report shows that it adds no nodes: each node then has a type of its own."""
    try:
        report = _get(address, "/api/cluster_status")["clusterStatus"]["autoscalerReport"]
        return bool(report["activeNodes"]) and all(map(_TYPE_OF_ITS_OWN.fullmatch, report["activeNodes"]))
    except (OSError, ValueError, TypeError, KeyError, HTTPException):  # it has another one, or none
        return False


def _get(address: str, path: str) -> Any:
    request = urllib.request.Request(f"{address}{path}", headers=authorization())
    with urllib.request.urlopen(request, timeout=_ASK_S) as answer:
        return json.load(answer)["data"]


def authorization() -> dict[str, str]:
    """Return the HTTP header with Ray's token; nothing if no token is set."""
    token = os.environ.get("RAY_AUTH_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}
