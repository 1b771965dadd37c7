"""The Kubernetes job that Prefect's worker really creates from the work pool's template."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import CHECKOUT

_PASSWORD = "admin:canary-70f2"
_SUBMIT = """
import asyncio, contextlib, json, sys, uuid
from prefect.client.schemas.objects import FlowRun
from prefect_kubernetes.worker import KubernetesWorker, KubernetesWorkerJobConfiguration

async def submit():
    template = json.loads(open(sys.argv[1]).read())
    job = await KubernetesWorkerJobConfiguration.from_template_and_values(template, {})
    job.prepare_for_flow_run(FlowRun(id=uuid.uuid4(), flow_id=uuid.uuid4(), name="nightly"))
    with contextlib.suppress(AttributeError):  # of the client: there is no Kubernetes to send the job to
        await KubernetesWorker(work_pool_name="pipeline")._create_job(job, client=object())
    print(json.dumps(job.job_manifest))

asyncio.run(submit())
"""


@pytest.mark.slow
def test_a_job_has_no_password_in_clear_and_queues_an_evicted_run_again_with_the_settings_of_the_docs(
    tmp_path: Path,
) -> None:
    text = (CHECKOUT / "docs/server.md").read_text()
    env = os.environ | dict(re.findall(r"(PREFECT_INTEGRATIONS_KUBERNETES_\w+)=([\w-]+)", text))
    env |= {"PREFECT_HOME": str(tmp_path), "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    command = [sys.executable, "-c", _SUBMIT, str(CHECKOUT / "deploy" / "kubernetes-work-pool.json")]
    answer = subprocess.run(
        command, env=env | {"PREFECT_API_AUTH_STRING": _PASSWORD}, capture_output=True, text=True, check=True
    )
    (container,) = json.loads(answer.stdout.splitlines()[-1])["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one for one in container["env"]}
    assert len(variables) == len(container["env"])
    reference = {"name": "pipeline-prefect", "key": "auth_string"}
    assert variables["PREFECT_API_AUTH_STRING"]["valueFrom"] == {"secretKeyRef": reference}
    assert variables["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "pipeline-ray"
    assert _PASSWORD not in json.dumps(container)
    assert variables["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"]["value"] == "reschedule"
