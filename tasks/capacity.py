"""What Ray can give, known before anything is begun: this machine's own, or the cluster that RAY_ADDRESS names."""

import json
import os
import tempfile
import time
import urllib.request
from http.client import HTTPException

from storage import files
from storage.uri import URI, Root, masked
from tasks.jobs import dashboard, scale

SPARE_CPUS = 3
"""CPUs that a local Ray counts beyond the machine's: a driver and data tasks run beside the workers."""
_ASK_S = 4
"""How long a cluster may take to say what it has."""
LEAST_FREE_BYTES = 256_000_000
"""Less than this on a disk, and no run gets far: a checkpoint of the smallest model beside Ray's own files."""


def check_workers(workers: scale.Workers, needs: scale.Needs = scale.ANY) -> str:
    """What there is; raises `ValueError` naming it and what was asked when Ray can never give that many workers.

    None means auto, 0 without Ray. Within 5 s: a cluster is asked what it has, and `RAY_ADDRESS` is named when it does
    not answer; so is `PIPELINE_DASHBOARD` when Ray has no such dashboard.
    """
    if workers == 0:
        return "none: this process does the work"
    dashboard.kind()
    address = os.environ.get("RAY_ADDRESS", "")
    if address:
        found = _usable_nodes(address)
        given = scale.resolve(workers, threads=None, nodes=found, needs=needs)
        cpus, gpus = (int(sum(node.get(kind, 0) for node in found)) for kind in ("CPU", "GPU"))
        have = f"{len(found)} nodes, {cpus} CPUs, {gpus} GPUs"
        return f"{masked(address)}: {have}; {given.workers} workers with {given.cpus:g} CPUs each"
    if needs.accelerator_type and not _has_gpu():
        raise ValueError(
            f"accelerator_type must be one that this machine has, got {needs.accelerator_type!r} and there is no GPU; "
            "leave it out, or RAY_ADDRESS names a cluster"
        )
    most = (os.cpu_count() or 1) + SPARE_CPUS - 1
    elastic = scale.limits(workers)
    most = int(most // (needs.cpus or 1))
    if int(elastic[1] if elastic else workers or 1) > most:
        each = f"with {needs.cpus:g} CPUs each (cpus_per_worker) " if needs.cpus else ""
        raise ValueError(
            f"--workers {each}must be at most {most} on this machine, got {workers or 1}; RAY_ADDRESS names a cluster"
        )
    return f"a local one, {os.cpu_count()} cores, at most {most} workers"


def check_disk(root: Root) -> str:
    """How much disk is free here; raises `ValueError` where it is too little for any run. S3 does not tell."""
    places = [URI(tempfile.gettempdir())] if root.is_s3 else [root, URI(tempfile.gettempdir())]
    for place in places:
        try:
            files.check_space(place, needed=LEAST_FREE_BYTES)
        except files.DiskFull as error:
            raise ValueError(str(error)) from None
    return ", ".join(f"{files.free_bytes(place) / 1e9:.1f} GB free in {place}" for place in places)


def _has_gpu() -> bool:
    import torch  # takes seconds: only for those who ask for a GPU

    return torch.cuda.is_available()


def _usable_nodes(address: str) -> list[scale.Resources]:
    """The nodes that work can be put on, once there are any: a dashboard that just started answers before them."""
    asked = time.monotonic()
    while not (found := scale.usable(nodes_of(address))):
        if time.monotonic() - asked > _ASK_S:
            raise ValueError(
                f"RAY_ADDRESS={masked(address)}: no node of that cluster has a CPU to give; add one, or leave it out "
                "for a local Ray"
            )
        time.sleep(0.2)
    return found


def nodes_of(address: str) -> list[dict[str, float]]:
    """What each live node of the cluster has, from the dashboard that also takes jobs."""
    try:
        request = urllib.request.Request(f"{address}/api/v0/nodes?limit=10000", headers=authorization())
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:
            listed = json.load(answer)["data"]["result"]["result"]
    except (OSError, ValueError, TypeError, KeyError, HTTPException) as error:
        reason = "it asks for another RAY_AUTH_TOKEN" if getattr(error, "code", 0) in (401, 403) else error
        raise ValueError(
            f"RAY_ADDRESS must be where a Ray cluster's Jobs API answers, http://head:8265, got {masked(address)!r} "
            f"({reason}); leave it out for a local Ray"
        ) from None
    return [node["resources_total"] for node in listed if node["state"] == "ALIVE"]


def authorization() -> dict[str, str]:
    """The header by which Ray knows us, when it asks for a token."""
    token = os.environ.get("RAY_AUTH_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}
