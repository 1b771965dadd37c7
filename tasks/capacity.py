"""What Ray can give, known before anything is begun: this machine's own, or the cluster that RAY_ADDRESS names."""

import json
import os
import time
import urllib.request
from http.client import HTTPException

from storage.uri import masked
from tasks.jobs import scale

SPARE_CPUS = 3
"""CPUs that a local Ray counts beyond the machine's: a driver, a controller and data tasks run beside the workers."""
_ASK_S = 4
"""How long a cluster may take to say what it has."""


def check_workers(workers: scale.Workers, needs: scale.Needs = scale.ANY) -> None:
    """Raise `ValueError` naming what was asked and what there is when Ray can never give that many workers.

    None means auto, 0 without Ray. Within 5 s: a cluster is asked what it has, and `RAY_ADDRESS` is named when it does
    not answer.
    """
    if workers == 0:
        return
    address = os.environ.get("RAY_ADDRESS", "")
    if address:
        scale.resolve(workers, threads=None, nodes=_usable_nodes(address), needs=needs)
        return
    most = (os.cpu_count() or 1) + SPARE_CPUS - 1
    elastic = scale.limits(workers)
    most = int(most // (needs.cpus or 1))
    if int(elastic[1] if elastic else workers or 1) > most:
        each = f"with {needs.cpus:g} CPUs each (cpus_per_worker) " if needs.cpus else ""
        raise ValueError(
            f"--workers {each}must be at most {most} on this machine, got {workers or 1}; RAY_ADDRESS names a cluster"
        )


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
