"""deploy/kuberay.yaml and the job template fit their published schemas, the lock, and what the pipeline expects."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import yaml

from flows.server import watch
from tasks.resources import scaling
from tests.deploy import image
from tests.runs import CHECKOUT

_DEPLOY = CHECKOUT / "deploy"
_CLUSTER = yaml.safe_load((_DEPLOY / "kuberay.yaml").read_text())
_SCHEMA = yaml.safe_load((CHECKOUT / "tests" / "deploy" / "raycluster.schema.yaml").read_text())
_TEMPLATE = json.loads((_DEPLOY / "kubernetes-work-pool.json").read_text())
_JOB = _TEMPLATE["job_configuration"]["job_manifest"]
_DEFAULTS = {name: one.get("default") for name, one in _TEMPLATE["variables"]["properties"].items()}
_SPEC = _CLUSTER["spec"]
_GROUPS = {group["groupName"]: group for group in _SPEC["workerGroupSpecs"]}
_OBJECT_STORE_SHARE = 0.3
"""Share of a node's memory that Ray's object store takes by default (docs.ray.io, memory management)."""
_LOCK = (CHECKOUT / "requirements.lock").read_text()


def _pods() -> Iterator[dict[str, Any]]:
    yield from (group["template"]["spec"] for group in (_SPEC["headGroupSpec"], *_GROUPS.values()))


def _container(group: dict[str, Any]) -> dict[str, Any]:
    (found,) = group["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def _secrets() -> set[str]:
    """The secrets that the comment at the head of kuberay.yaml creates."""
    return set(re.findall(r"create secret generic (\S+)", (_DEPLOY / "kuberay.yaml").read_text()))


def test_the_cluster_fits_the_schema_of_kuberay() -> None:
    jsonschema.validate(_CLUSTER, _SCHEMA)


def test_ray_has_the_version_of_the_lock_and_the_token_comes_from_a_secret() -> None:
    assert f"\nray=={_SPEC['rayVersion']} " in _LOCK
    assert _SPEC["authOptions"] == {"mode": "token", "secretName": "pipeline-ray"}
    assert "pipeline-ray" in _secrets()


def test_every_pod_runs_the_same_image_without_root_with_its_own_storage_keys() -> None:
    for pod in _pods():
        (container,) = pod["containers"]
        assert container["image"] == _DEFAULTS["image"] == "data-to-model:cuda"
        assert container["envFrom"] == [{"secretRef": {"name": "pipeline-storage"}}]
        assert pod["securityContext"]["runAsUser"] == 1000 and ("USER", "1000:1000") in image.stages()[-1]
        assert pod["securityContext"]["runAsNonRoot"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert "pipeline-storage" in _secrets()


def test_shared_memory_holds_rays_object_store_which_otherwise_goes_to_disk() -> None:
    for pod in _pods():
        (container,) = pod["containers"]
        memory = _bytes(container["resources"]["limits"]["memory"])
        volumes = {volume["name"]: volume.get("emptyDir", {}) for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        # Without a mount there, KubeRay mounts one of the container's memory limit.
        shared = _bytes(mounts["/dev/shm"]["sizeLimit"]) if "/dev/shm" in mounts else memory
        assert shared >= _OBJECT_STORE_SHARE * memory


def test_the_head_takes_no_work_and_both_groups_grow_from_zero() -> None:
    assert _SPEC["enableInTreeAutoscaling"]
    assert _SPEC["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert _GROUPS.keys() == {"cpu", "gpu"}
    assert all(group["replicas"] == group["minReplicas"] == 0 < group["maxReplicas"] for group in _GROUPS.values())


def test_the_pipeline_can_use_the_nodes_that_the_groups_declare() -> None:
    nodes = {name: _resources(_container(group)) for name, group in _GROUPS.items()}
    assert nodes == {"cpu": {"CPU": 8.0, "GPU": 0.0}, "gpu": {"CPU": 8.0, "GPU": 1.0}}
    assert scaling.usable([{"CPU": 0.0}, *nodes.values()]) == list(nodes.values())
    most = [nodes["gpu"]] * _GROUPS["gpu"]["maxReplicas"] + [nodes["cpu"]] * _GROUPS["cpu"]["maxReplicas"]
    scale = scaling.resolve(None, threads=None, nodes=most)
    assert scale.use_gpu and scale.workers == _GROUPS["gpu"]["maxReplicas"]
    for pod in _pods():
        resources = pod["containers"][0]["resources"]
        assert resources["requests"] == resources["limits"], "Ray counts limits; the scheduler reserves requests"


def test_the_probes_ask_the_agent_of_each_node_which_answers_without_a_token() -> None:
    for pod in _pods():
        for kind in ("readinessProbe", "livenessProbe"):
            assert pod["containers"][0][kind]["httpGet"] == {"path": "/api/healthz", "port": 52365}


def test_the_job_template_uses_each_of_its_variables_and_no_other() -> None:
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(_TEMPLATE["job_configuration"])))
    assert used == _TEMPLATE["variables"]["properties"].keys()
    assert set(_TEMPLATE["variables"]["required"]) <= {name for name, value in _DEFAULTS.items() if value is not None}


def test_the_job_runs_the_flow_with_storage_cluster_and_secrets_and_no_secret_in_the_template() -> None:
    (container,) = _JOB["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one for one in container["env"]}
    assert env.keys() == {*("PIPELINE_STORAGE", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    head = f"{_CLUSTER['metadata']['name']}-head-svc"
    (dashboard,) = [port for port in _container(_SPEC["headGroupSpec"])["ports"] if port["name"] == "dashboard"]
    assert _DEFAULTS["ray_address"] == f"http://{head}:{dashboard['containerPort']}"
    assert _DEFAULTS["ray_secret"] == _SPEC["authOptions"]["secretName"]
    assert _DEFAULTS["storage_secret"] in _secrets()
    assert set(env["RAY_AUTH_TOKEN"]) == {"name", "valueFrom"}


def test_the_job_is_one_pod_that_is_not_repeated_and_writes_only_to_scratch() -> None:
    pod = _JOB["spec"]["template"]["spec"]
    assert (_JOB["apiVersion"], _JOB["kind"], pod["restartPolicy"]) == ("batch/v1", "Job", "Never")
    assert _JOB["spec"]["backoffLimit"] == 0  # Prefect restarts crashed runs; Kubernetes would run them beside that
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["volumeMounts"] == [{"name": "scratch", "mountPath": "/tmp"}]
    assert pod["securityContext"]["runAsUser"] == 1000


def _bytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi")) * 2**30


def _resources(container: dict[str, Any]) -> dict[str, float]:
    """What Ray counts on a pod of this container: its limits."""
    limits = container["resources"]["limits"]
    return {"CPU": float(limits["cpu"]), "GPU": float(limits.get("nvidia.com/gpu", 0))}


def test_run_is_not_queued_again_while_kubernetes_may_still_pull_its_image() -> None:
    assert watch.START_LIMIT.total_seconds() > _DEFAULTS["pod_watch_timeout_seconds"]
