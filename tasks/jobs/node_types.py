"""Nodes that a cluster may add: read on the head node from the configuration of the autoscaler.

`python -m tasks.jobs.node_types` prints them; Ray's public interfaces list only nodes that are alive.
A job's driver, which runs on the head node, reads the file of `ray up` or `ray start --autoscaling-config`, or on
Kubernetes the RayCluster resource, which a head pod may read if its cluster has an autoscaler.
"""

import contextlib
import itertools
import json
import os
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from storage.uri import redact_text
from tasks.jobs import events
from tasks.jobs.spec import NODE_TYPES
from tasks.resources import scaling
from tasks.resources.scaling import Resources

_MOST_NODES = 10_000
"""Upper limit of the nodes that are counted of one type; KubeRay's default maximum exceeds two billion."""
_OPTION = "--autoscaling-config="
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts the credentials with which a pod calls its API."""
_ASK_S = 10
_HEAD = "node:__internal_head__"
"""Resource by which Ray marks the head node."""

NodeTypes = Sequence[tuple[Resources, int]]
"""Resources of each type of node, and how many nodes of it there may be."""


def main() -> None:
    """Print the nodes that the cluster may add as one marked line of JSON."""
    ray.init(logging_level="WARNING")
    alike = itertools.groupby(addable())
    events.write_event(NODE_TYPES, addable=[(resources, sum(1 for _ in nodes)) for resources, nodes in alike])


def addable() -> list[Resources]:
    """Return the nodes that may still join the connected cluster, one entry each; none if it does not grow."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    try:
        declared, most = _declared(ray.get_runtime_context().gcs_address)
    except Exception as error:  # whatever is wrong there, the nodes that are alive can be used
        reason = redact_text(" ".join(str(error).split()))
        events.write_line(
            f"WARNING: it is unknown which nodes may be added ({reason}); only nodes that are alive count; "
            "check the autoscaler's configuration on the head node"
        )
        return []
    return left_over(declared, most, alive)


def left_over(declared: NodeTypes, most: int, alive: Sequence[Resources]) -> list[Resources]:
    """Return the nodes of the `declared` types, at most `most` in all, without those that are `alive`; GPUs first.

    Each live node counts once, as one of the first type that it may be of; types that declare their kind of GPU are
    first, since any of the others may have the same one.
    """
    types = sorted(declared, key=lambda one: (-scaling.num_gpus(one[0]), -len(scaling.kinds_of_gpu(one[0]))))
    left = [min(number, _MOST_NODES) for _, number in types]
    workers = [node for node in alive if _HEAD not in node]
    for node in workers:
        matching = (at for at, (resources, _) in enumerate(types) if left[at] and _may_be(node, resources))
        if (at := next(matching, None)) is not None:
            left[at] -= 1
    found = [resources for (resources, _), number in zip(types, left, strict=True) for _ in range(number)]
    return found[: max(0, most - len(workers))]


def _may_be(node: Resources, declared: Resources) -> bool:
    """Return True if `node` has the CPUs and GPUs of a type, and the kind of GPU if that is `declared`."""
    return _size(node) == _size(declared) and scaling.kinds_of_gpu(declared) <= scaling.kinds_of_gpu(node)


def _size(node: Resources) -> tuple[float, int]:
    return node.get("CPU", 0), scaling.num_gpus(node)


def _declared(gcs_address: str) -> tuple[NodeTypes, int]:
    """Return the types of nodes that may be added, and how many nodes there may be in all beside the head."""
    file = config_file(gcs_address)
    if file is not None:
        import yaml

        return of_config(yaml.safe_load(file.read_text()))
    name = os.environ.get("RAY_CLUSTER_NAME")
    if name and _ACCOUNT.exists():
        return of_ray_cluster(_ask_kubernetes(name))
    return [], 0


def config_file(gcs_address: str, processes: Path = Path("/proc")) -> Path | None:
    """Return the configuration file of this cluster's monitor; none if it has none or does not run here."""
    port = gcs_address.rpartition(":")[2]
    for place in processes.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            options = [part for part in place.read_text(errors="replace").split("\0") if part.startswith("--")]
            ours = any(option.startswith("--gcs-address=") and option.endswith(f":{port}") for option in options)
            given = next((option for option in options if option.startswith(_OPTION)), None)
            if ours and given:
                return Path(given.removeprefix(_OPTION)).expanduser()
    return None


def of_config(config: Mapping[str, Any]) -> tuple[NodeTypes, int]:
    """Read the configuration of a cluster in the form of `ray up`."""
    most = int(config.get("max_workers", 2))
    head, types = config.get("head_node_type"), config["available_node_types"]
    return [
        (about.get("resources", {}), int(about.get("max_workers", 0 if name == head else most)))
        for name, about in types.items()
    ], most


def of_ray_cluster(resource: Mapping[str, Any]) -> tuple[NodeTypes, int]:
    """Read a RayCluster resource of KubeRay."""
    spec = resource["spec"]
    groups = spec.get("workerGroupSpecs", []) if spec.get("enableInTreeAutoscaling") else []
    declared = [
        (_resources_of(group), int(group.get("maxReplicas", 0)) * int(group.get("numOfHosts", 1)))
        for group in groups
        if not group.get("suspend")
    ]
    return declared, sum(number for _, number in declared)


def _resources_of(group: Mapping[str, Any]) -> Resources:
    """Return the resources that Ray counts on a pod of `group`: its Ray settings, else its limits or requests."""
    container = group["template"]["spec"]["containers"][0].get("resources", {})
    limits = container.get("requests", {}) | container.get("limits", {})
    params, own = group.get("rayStartParams", {}), group.get("resources", {})
    gpus = sum(float(amount) for name, amount in limits.items() if name.endswith("/gpu"))
    cpus = own.get("CPU", params.get("num-cpus", limits.get("cpu", 0)))
    others = json.loads(params.get("resources", "{}").strip("'\"").replace('\\"', '"'))
    found = others | {"CPU": _quantity(cpus), "GPU": _quantity(own.get("GPU", params.get("num-gpus", gpus)))}
    return {str(name): float(amount) for name, amount in found.items()}


def _quantity(text: object) -> float:
    """Return a Kubernetes quantity of whole units; thousandths are rounded up, as Ray's autoscaler does."""
    told = str(text)
    return float(-(-int(told[:-1]) // 1000)) if told.endswith("m") else float(told)


def _ask_kubernetes(name: str) -> Mapping[str, Any]:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT_HTTPS", "443")
    namespace, token = ((_ACCOUNT / file).read_text().strip() for file in ("namespace", "token"))
    url = f"https://{host}:{port}/apis/ray.io/v1/namespaces/{namespace}/rayclusters/{name}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    trusted = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=_ASK_S, context=trusted) as answer:
        found: Mapping[str, Any] = json.load(answer)
        return found


if __name__ == "__main__":
    main()
