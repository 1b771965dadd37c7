"""Capacity check before a run: what this machine, or the cluster that RAY_ADDRESS names, can give."""

import json
import os
import tempfile
import time
import urllib.request
from http.client import HTTPException

from storage import error_policy, files
from storage.uri import URI, Root, redact
from tasks.jobs import dashboard, scaling
from tasks.planning import machine

SPARE_CPUS = 3
"""CPUs that a local Ray counts beyond the machine's own: a driver and data tasks run beside the workers."""
_ASK_S = 4
"""Timeout of a request to a cluster's dashboard, and of the wait for its first usable node, in seconds."""
LEAST_FREE_BYTES = 256_000_000
"""Least free disk for any run, in bytes: a checkpoint of the smallest model beside Ray's own files."""


def check_workers(workers: scaling.Workers, needs: scaling.Needs = scaling.ANY) -> str:
    """Describe the resources for `workers` (None: auto, 0: no Ray); takes at most 5 s, also if a cluster is silent.

    Raises:
        ValueError: Ray can never give this, or RAY_ADDRESS or PIPELINE_DASHBOARD is wrong; names wanted and found.
    """
    machine.cores_asked(workers)
    if workers == 0:
        return "not used: the work runs in this process"
    dashboard.kind()
    address = os.environ.get("RAY_ADDRESS", "")
    if address:
        found = _usable_nodes(address)
        given = scaling.resolve(workers, threads=None, nodes=found, needs=needs)
        cpus, gpus = (int(sum(node.get(kind, 0) for node in found)) for kind in ("CPU", "GPU"))
        have = f"{len(found)} nodes, {cpus} CPUs, {gpus} GPUs"
        return f"{redact(address)}: {have}; {given.workers} workers with {given.cpus:g} CPUs each"
    if needs.accelerator_type and not _has_gpu():
        raise ValueError(
            f"accelerator_type is {needs.accelerator_type!r}, but this machine has no GPU; omit it, or set "
            "RAY_ADDRESS to a cluster"
        )
    most = machine.cores() + SPARE_CPUS - 1
    elastic = scaling.limits(workers)
    most = int(most // (needs.cpus or 1))
    if int(elastic[1] if elastic else workers or 1) > most:
        each = f"with {needs.cpus:g} CPUs each (cpus_per_worker) " if needs.cpus else ""
        raise ValueError(
            f"--workers {each}must be at most {most} on this machine, got {workers or 1}; for more, set RAY_ADDRESS "
            "to a cluster"
        )
    return f"local, {machine.cores()} cores, at most {most} workers"


def check_disk(root: Root) -> str:
    """Describe the free disk space here (S3 reports none); raise `ValueError` if it is too little for any run."""
    places = [URI(tempfile.gettempdir())] if root.is_s3 else [root, URI(tempfile.gettempdir())]
    for place in places:
        try:
            files.check_space(place, needed=LEAST_FREE_BYTES)
        except error_policy.DiskFull as error:
            raise ValueError(str(error)) from None
    return ", ".join(f"{files.free_bytes(place) / 1e9:.1f} GB free in {place}" for place in places)


def _has_gpu() -> bool:
    import torch  # takes seconds: only when a GPU is asked for

    return torch.cuda.is_available()


def _usable_nodes(address: str) -> list[scaling.Resources]:
    """Wait for nodes that can take work: a dashboard that just started answers before its nodes are up."""
    asked = time.monotonic()
    while not (found := scaling.usable(nodes_of(address))):
        if time.monotonic() - asked > _ASK_S:
            raise ValueError(
                f"RAY_ADDRESS={redact(address)}: no node of that cluster has any CPUs; add a node, or unset it to "
                "use a local Ray"
            )
        time.sleep(0.2)
    return found


def nodes_of(address: str) -> list[dict[str, float]]:
    """Return the resources of each live node of the cluster, from the dashboard that also takes jobs."""
    try:
        request = urllib.request.Request(f"{address}/api/v0/nodes?limit=10000", headers=authorization())
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:
            listed = json.load(answer)["data"]["result"]["result"]
    except (OSError, ValueError, TypeError, KeyError, HTTPException) as error:
        reason = "RAY_AUTH_TOKEN was not accepted" if getattr(error, "code", 0) in (401, 403) else error
        raise ValueError(
            "RAY_ADDRESS must be the address of a Ray cluster's Jobs API, such as http://head:8265, got "
            f"{redact(address)!r} ({reason}); unset it to use a local Ray"
        ) from None
    return [node["resources_total"] for node in listed if node["state"] == "ALIVE"]


def authorization() -> dict[str, str]:
    """Return the HTTP header with Ray's token; nothing if no token is set."""
    token = os.environ.get("RAY_AUTH_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}
