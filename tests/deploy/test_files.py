"""The files in deploy/ fit their schemas, each other and the lock."""

import json
import re
import subprocess

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from flows.server import watch
from tests.deploy import composed
from tests.runs import CHECKOUT

CLUSTER = (composed.DEPLOY / "kuberay.yaml").read_text()
OFFERED = re.sub(r"^  # (\w+: \{.*\}) ?(#.*)?$", r"  \1", CLUSTER, flags=re.MULTILINE)
"""The cluster with all that its comments offer."""


def test_the_cluster_fits_the_schema_of_kuberay_and_has_the_ray_of_the_lock() -> None:
    schema = yaml.safe_load((CHECKOUT / "tests/deploy/raycluster.schema.yaml").read_text())
    cluster, offered = yaml.safe_load(CLUSTER), yaml.safe_load(OFFERED)
    assert offered["spec"].keys() - cluster["spec"].keys() == {
        "gcsFaultToleranceOptions",
        "tlsOptions",
        "networkPolicy",
    }
    for each in (cluster, offered):
        jsonschema.validate(each, schema)
    # The operator refuses each of them without its feature gate.
    gates = dict(re.findall(r"^  # (\w+): \{.*\} # (\w+)", CLUSTER, flags=re.MULTILINE))
    assert gates == {
        "gcsFaultToleranceOptions": "GCSFaultToleranceEmbeddedStorage",
        "tlsOptions": "RayClusterMTLS",
        "networkPolicy": "RayClusterNetworkPolicy",
    }
    assert all(f"`{gate}`" in (CHECKOUT / "docs/server.md").read_text() for gate in gates.values())
    assert f"\nray=={cluster['spec']['rayVersion']} " in (CHECKOUT / "requirements.lock").read_text()


def test_the_autoscaler_knows_the_kind_of_the_gpus_of_nodes_that_are_not_there() -> None:
    cluster = yaml.safe_load(CLUSTER)
    cluster["metadata"]["namespace"] = "default"
    types = _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
    gpus = [kind["resources"] for kind in types.values() if "GPU" in kind["resources"]]
    assert [(each["GPU"], each["accelerator_type:A100"]) for each in gpus] == [(1, 1)]


def test_the_job_template_uses_each_of_its_variables_and_waits_less_than_watch_for_its_image() -> None:
    template = json.loads((composed.DEPLOY / "kubernetes-work-pool.json").read_text())
    properties = template["variables"]["properties"]
    assert set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"]))) == properties.keys()
    assert all("default" in properties[name] for name in template["variables"]["required"])
    assert properties["pod_watch_timeout_seconds"]["default"] < watch.START_LIMIT_S


def test_compose_refuses_to_start_while_a_password_or_key_is_missing_and_the_example_holds_none() -> None:
    example = composed.example(empty="s3cret")
    for name in example:
        with pytest.raises(composed.Missing, match=name):
            composed.services({**example, name: ""})
    text = (composed.DEPLOY / ".env.example").read_text()
    assert {name for name in composed.variables() if f"{name}=" not in text} == set()
    assert set(composed.example().values()) == {""}
    assert subprocess.run(["git", "check-ignore", "-q", "deploy/.env"], cwd=CHECKOUT).returncode == 0
