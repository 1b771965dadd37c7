"""Capacity check before a run: what this machine, or the cluster that RAY_ADDRESS names, can provide."""

import json
import os
import sys
import tempfile
import urllib.request
from http.client import HTTPException

from storage import error_policy, files, terminal
from storage.terminal import count
from storage.uri import URI, Root, redact
from tasks.resources import devices, machine, scaling
from tasks.resources.needs import ANY, Needs

SPARE_CPUS = 3
"""CPUs that a local Ray counts beyond the machine's own: a driver and data tasks run beside the workers."""
_ASK_S = 4
"""Timeout of a request to a cluster's dashboard, in seconds."""
LEAST_FREE_BYTES = 256_000_000
"""Least free disk for any run, in bytes: a checkpoint of the smallest model beside Ray's own files."""


def check_workers(needs: Needs = ANY) -> str:
    """Describe the resources for so many workers; waits at most 25 s.

    Raises:
        ValueError: This machine cannot provide them, or RAY_ADDRESS is wrong; says what was asked for and what exists.
    """
    machine.cores_asked(needs.workers)
    address = cluster_address() if needs.workers != 0 else ""
    if not address:
        _check_gpus_here(needs)
    if needs.workers == 0:
        return "not used: the work runs in this process"
    cores = machine.cores()
    local: scaling.Resources = {"CPU": cores + SPARE_CPUS, "GPU": len(machine.gpus())}
    nodes = scaling.usable(nodes_of(address)) if address else [local]
    has = f"{redact(address)}: {scaling.counted(nodes)}" if address else f"local, {count(cores, 'core')}"
    try:
        scale = scaling.resolve(needs.workers, threads=None if address else cores, nodes=nodes, needs=needs)
    except ValueError as error:
        if not address:
            raise
        missing = f"each stage waits for the cluster to add nodes: {error}"
        terminal.show(f"WARNING: {missing}", sys.stderr)
        return f"{has}; {missing}"
    each = [*["1 GPU"] * scale.use_gpu, *[count(scale.cpus, "CPU")] * bool(address)]
    return f"{has}; {count(scale.workers, 'worker')}" + (f" with {' and '.join(each)} each" if each else "")


def _check_gpus_here(needs: Needs) -> None:
    """Raise `ValueError` if `accelerator_type` is set, or if device=cuda and torch, asked last, finds no GPU here."""
    if needs.accelerator_type:
        raise ValueError(f"accelerator_type must be empty without a cluster, got {needs.accelerator_type!r}; omit it")
    if needs.device == "cuda" and not machine.gpus() and (trouble := devices.trouble_in_child()):
        advice = f"use a cluster with GPUs (RAY_ADDRESS), or {devices.CPU_ADVICE}"
        raise ValueError(f"device=cuda needs a GPU, but none was found on this machine: {trouble}; {advice}")


def cluster_address() -> str:
    """Return RAY_ADDRESS, empty for a local Ray."""
    return os.environ.get("RAY_ADDRESS", "")


def check_disk(root: Root) -> str:
    """Describe the free disk space here (S3 reports none); raise `ValueError` if it is too little for any run."""
    places = [URI(tempfile.gettempdir())] if root.is_s3 else [root, URI(tempfile.gettempdir())]
    for place in places:
        try:
            files.check_space(place, needed=LEAST_FREE_BYTES)
        except error_policy.DiskFull as error:
            raise ValueError(str(error)) from None
    return ", ".join(f"{files.free_bytes(place) / 1e9:.1f} GB free in {place}" for place in places)


def nodes_of(address: str) -> list[dict[str, float]]:
    """Return the resources of each live node of the cluster, from the dashboard that also takes jobs."""
    try:
        token = os.environ.get("RAY_AUTH_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"{address}/api/v0/nodes?limit=10000", headers=headers)
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:
            nodes = json.load(answer)["data"]["result"]["result"]
    except (OSError, ValueError, TypeError, KeyError, HTTPException) as error:
        reason = "RAY_AUTH_TOKEN was not accepted" if getattr(error, "code", 0) in (401, 403) else error
        raise ValueError(
            "RAY_ADDRESS must be the address of a Ray cluster's Jobs API, such as http://head:8265, got "
            f"{redact(address)!r} ({reason}); unset it to use a local Ray"
        ) from None
    return [node["resources_total"] for node in nodes if node["state"] == "ALIVE"]
