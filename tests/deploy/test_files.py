"""The files in deploy/ fit their schemas, each other and the lock."""

import json
import re
import subprocess

import jsonschema
import pytest
import yaml

from flows.server import watch
from tests.deploy import composed
from tests.runs import CHECKOUT


def test_the_cluster_fits_the_schema_of_kuberay_and_has_the_ray_of_the_lock() -> None:
    cluster = yaml.safe_load((composed.DEPLOY / "kuberay.yaml").read_text())
    jsonschema.validate(cluster, yaml.safe_load((CHECKOUT / "tests/deploy/raycluster.schema.yaml").read_text()))
    assert f"\nray=={cluster['spec']['rayVersion']} " in (CHECKOUT / "requirements.lock").read_text()


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
